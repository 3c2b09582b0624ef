#include "trestle/tensor_parallel/vocabulary_lookup.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tensor_parallel {

void refuse_ids_outside(const at::Tensor& ids, std::int64_t rows) {
  if (ids.numel() == 0) return;
  const auto least = ids.min().item<std::int64_t>(), largest = ids.max().item<std::int64_t>();
  if (least >= 0 && largest < rows) return;
  throw UsageError(text("the row ", least < 0 ? least : largest,
                        " is out of range: it has the rows 0 to ", rows - 1));
}

}  // namespace trestle::tensor_parallel
