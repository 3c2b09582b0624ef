#include "trestle/plan/extrapolate.h"

#include <algorithm>
#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

// Extrapolates from the two measured sizes to the requested one.
struct Line {
  double small_size = 1, large_size = 1, size = 1, parts = 1;
  double steps = 0;  // distance beyond the large size, in units of the distance between the two
  double proportion = 1;  // the requested size divided by the large one

  Line(double small, double large, double wanted, double wanted_parts)
      : small_size(small),
        large_size(large),
        size(wanted),
        parts(wanted_parts),
        steps((wanted - large) / (large - small)),
        proportion(wanted / large) {}

  Bytes bytes(Bytes small, Bytes large) const {
    return extrapolate_bytes(small, small_size, large, large_size, size, parts);
  }
  double seconds(double small, double large) const {
    return std::clamp(large + steps * (large - small), large, large * proportion);
  }
  void extend(const std::vector<LayerMessage>& small, std::vector<LayerMessage>* large) const {
    for (std::size_t i = 0; i < small.size(); ++i) {
      (*large)[i].bytes = bytes(small[i].bytes, (*large)[i].bytes);
      (*large)[i].beside = seconds(small[i].beside, (*large)[i].beside);
    }
  }
};

void check_same(const LayerProfile& small, const LayerProfile& large) {
  check(small);
  check(large);
  const bool same_layers =
      std::equal(small.layers.begin(), small.layers.end(), large.layers.begin(), large.layers.end(),
                 [](const LayerCost& a, const LayerCost& b) { return a.name == b.name; });
  const bool same_messages =
      std::equal(small.layers.begin(), small.layers.end(), large.layers.begin(), large.layers.end(),
                 [](const LayerCost& a, const LayerCost& b) {
                   return a.forward_messages.size() == b.forward_messages.size() &&
                          a.backward_messages.size() == b.backward_messages.size();
                 });
  const bool same_values =
      std::equal(small.values.begin(), small.values.end(), large.values.begin(), large.values.end(),
                 [](const ValueCost& a, const ValueCost& b) {
                   return a.from == b.from && a.to == b.to && a.view_of == b.view_of;
                 });
  const bool same_ties = std::equal(small.ties.begin(), small.ties.end(), large.ties.begin(),
                                    large.ties.end(), [](const TiedCost& a, const TiedCost& b) {
                                      return a.owner == b.owner && a.users == b.users &&
                                             a.bytes == b.bytes && a.frozen == b.frozen;
                                    });
  if (!same_layers || !same_messages || !same_values || !same_ties ||
      small.together != large.together)
    throw UsageError("the two profiles are not of the same model");
}

}  // namespace

Bytes extrapolate_bytes(Bytes small, double small_size, Bytes large, double large_size, double size,
                        double parts) {
  const auto a = static_cast<double>(small), b = static_cast<double>(large);
  const double per_small = a / small_size, per_large = b / large_size;
  double bytes = b + (size - large_size) / (large_size - small_size) * (b - a);
  if (small > 0 && per_large > per_small) {  // b = first * size + second * size^2
    const double second = (per_large - per_small) / (large_size - small_size);
    bytes = size * (per_small + second * (std::max(size / parts, large_size) - small_size));
  }
  constexpr double most = 4e18;  // below the largest number of Bytes
  return static_cast<Bytes>(std::llround(std::clamp(bytes, 0.0, most)));
}

LayerProfile extrapolate(const LayerProfile& small, double small_size, const LayerProfile& large,
                         double large_size, double size, double parts) {
  if (!(small_size > 0 && small_size < large_size && large_size <= size && std::isfinite(size)))
    throw UsageError(
        text("cannot extrapolate from the sizes ", small_size, " and ", large_size, " to ", size),
        {.hint = "The sizes must be above 0 and ascend."});
  check_same(small, large);
  const Line line(small_size, large_size, size, parts);
  LayerProfile result = large;
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    const LayerCost& a = small.layers[i];
    LayerCost& b = result.layers[i];
    b.forward = line.seconds(a.forward, b.forward);
    b.backward = line.seconds(a.backward, b.backward);
    for (Bytes LayerCost::*bytes :
         {&LayerCost::parameters, &LayerCost::frozen, &LayerCost::buffers, &LayerCost::inner,
          &LayerCost::transient, &LayerCost::transient_forward})
      b.*bytes = line.bytes(a.*bytes, b.*bytes);
    if (a.split && b.split)
      b.split = {
          .input_grad = line.seconds(a.split->input_grad, b.split->input_grad),
          .weight_grad = line.seconds(a.split->weight_grad, b.split->weight_grad),
          .kept_for_weights = line.bytes(a.split->kept_for_weights, b.split->kept_for_weights),
          .transient_weight_grad =
              line.bytes(a.split->transient_weight_grad, b.split->transient_weight_grad)};
    else
      b.split.reset();
    line.extend(a.forward_messages, &b.forward_messages);
    line.extend(a.backward_messages, &b.backward_messages);
  }
  for (std::size_t i = 0; i < result.values.size(); ++i)
    result.values[i].bytes = line.bytes(small.values[i].bytes, large.values[i].bytes);
  result.examples = 0;
  return result;
}

}  // namespace trestle::plan
