#include "trestle/plan/conv/layer_list.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

constexpr double number_bytes = 4;

// The simulator adds these up.
Bytes whole_bytes_of(double bytes) { return std::llround(std::min(bytes, 1e14)); }

double product_flops_per_second(const Machine& machine) {
  const Figure& peak = machine.peak_fp32 ? *machine.peak_fp32 : machine.peak;
  return machine.transformer.matrix_efficiency.value * peak.value;
}

}  // namespace

double parameters_of(const LayerList& list) {
  double sum = 0;
  for (const LayerFormula& layer : list.layers) sum += layer.parameters;
  return sum;
}

double model_flops(const LayerList& list, double examples) {
  double sum = 0;
  for (const LayerFormula& layer : list.layers) sum += layer.flops;
  return 3 * examples * sum;
}

LayerProfile profile_of(const LayerList& list, std::int64_t examples, const Machine& machine) {
  if (examples < 1)
    throw UsageError(text("a micro-batch of ", examples, " examples"),
                     {.hint = "Give a number from 1."});
  const auto n = static_cast<double>(examples);
  LayerProfile profile;
  profile.examples = static_cast<int>(examples);
  const auto count = static_cast<int>(list.layers.size());
  // A layer that returns its input passes its producer's value on.
  ValueCost value{
      .from = -1, .to = {}, .saved_by = {}, .bytes = whole_bytes_of(number_bytes * n * list.input)};
  std::vector<std::size_t> made_by;  // for each layer the value that it returns
  for (int i = 0; i < count; ++i) {
    const LayerFormula& layer = list.layers[static_cast<std::size_t>(i)];
    const double seconds = n * (layer.flops / product_flops_per_second(machine) +
                                number_bytes * layer.moved / machine.memory_bandwidth.value);
    const auto output = whole_bytes_of(number_bytes * n * layer.output);
    LayerCost cost{.name = layer.name,
                   .forward = seconds,
                   .backward = 2 * seconds,
                   .parameters = whole_bytes_of(number_bytes * layer.parameters),
                   .inner = whole_bytes_of(n * layer.saved_bytes)};
    value.to.push_back(i);
    if (layer.saves_input) value.saved_by.push_back(i);
    // The backward holds the gradients of input and output, and the weights' gradient before it is
    // added to that of earlier micro-batches.
    cost.transient = (value.from < 0 ? 0 : value.bytes) + output + cost.parameters;
    profile.layers.push_back(std::move(cost));
    if (layer.output == 0) {
      made_by.push_back(profile.values.size());
      continue;
    }
    profile.values.push_back(std::move(value));
    made_by.push_back(profile.values.size());
    value = {.from = i, .to = {}, .saved_by = {}, .bytes = output};
    if (layer.saves_output) value.saved_by.push_back(i);
  }
  value.to.push_back(count);
  profile.values.push_back(std::move(value));
  for (const SkipFormula& skip : list.skips) {
    auto& to = profile.values[made_by[static_cast<std::size_t>(skip.from)]].to;
    to.insert(std::lower_bound(to.begin(), to.end(), skip.to), skip.to);
  }
  return profile;
}

}  // namespace trestle::plan
