#include "trestle/data/random_tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"

namespace trestle::data {

namespace {

struct TargetsName {
  std::string_view name;
  RandomTargets targets;
};
constexpr std::array target_table = {
    TargetsName{"one_hot", RandomTargets::OneHot},
    TargetsName{"class", RandomTargets::Class},
    TargetsName{"normal", RandomTargets::Normal},
};

void check_positive(std::string_view what, std::int64_t value) {
  if (value < 1) throw UsageError(text("random tensors: ", what, " is ", value, ", not above 0"));
}

}  // namespace

RandomTargets parse_random_targets(std::string_view word) {
  return choose("kind of random targets", word, target_table).targets;
}

RandomTensors::RandomTensors(RandomTensorsOptions options) : options_(std::move(options)) {
  if (options_.shape.empty())
    throw UsageError("random tensors: the shape is empty",
                     {.hint = "Give the shape of one example, for example [3, 128, 128]."});
  std::int64_t numbers = 1;
  for (const std::int64_t size : options_.shape) {
    check_positive("a size of the shape", size);
    constexpr std::int64_t most = std::int64_t{1} << 50;
    if (size > most / numbers)
      throw UsageError(text("random tensors: the shape [", join(options_.shape, ", "),
                            "] has more numbers than any machine can hold"),
                       {.hint = "Make 'shape' in [data] smaller."});
    numbers *= size;
  }
  check_positive("the number of classes", options_.classes);
  check_positive("the number of examples", options_.count);
}

Sample RandomTensors::get(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw UsageError(text("example ", index, " of ", size(), " random ones"));
  auto random = at::make_generator<at::CPUGeneratorImpl>(keyed_seed(options_.seed, index, -1, 0));
  Sample sample;
  sample.name = text(index);
  sample.input = at::randn(options_.shape, random, at::kFloat);
  if (options_.targets == RandomTargets::Normal) {
    sample.target = at::randn({options_.classes}, random, at::kFloat);
    return sample;
  }
  sample.target = at::randint(options_.classes, {}, random, at::kLong);
  if (options_.targets == RandomTargets::OneHot) {
    const auto of_class = sample.target.item<std::int64_t>();
    sample.target = at::zeros({options_.classes}, at::kFloat);
    sample.target.data_ptr<float>()[of_class] = 1;
  }
  return sample;
}

}  // namespace trestle::data
