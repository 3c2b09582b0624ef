#include "trestle/tensor_parallel/plan_agreement.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/line_difference.h"
#include "trestle/comm/purpose.h"

namespace trestle::tensor_parallel {

void refuse_different_plans(const TensorRanks& ranks, const std::string& own, const char* what) {
  if (!ranks.exist() || ranks.alone()) return;
  const auto difference =
      comm::with_purpose([] { return "while the tensor ranks compared their models"; },
                         [&] { return comm::find_line_difference(ranks.group(), own); });
  if (!difference) return;
  throw UsageError(
      text("the tensor ranks ", what, ": '", difference->first, "' on tensor rank 0, '",
           difference->other, "' on tensor rank ", difference->rank),
      {.hint = "Give all tensor ranks the same model and options."});
}

}  // namespace trestle::tensor_parallel
