#include "trestle/data/split.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {

Split random_split(std::int64_t count, double fraction, std::uint64_t seed) {
  if (!(fraction >= 0 && fraction < 1)) {
    throw UsageError(
        text("the validation share is ", fraction, ": it must be at least 0 and below 1"));
  }
  if (count < 1) throw UsageError(text("cannot split ", count, " examples"));
  const auto validation = static_cast<std::int64_t>(static_cast<double>(count) * fraction);
  const at::Tensor order =
      at::randperm(count, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
  const std::int64_t* first = order.const_data_ptr<std::int64_t>();
  const std::int64_t* middle = first + (count - validation);
  return {{first, middle}, {middle, first + count}};
}

}  // namespace trestle::data
