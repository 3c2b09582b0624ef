#include "trestle/plan/extrapolate.h"

#include <algorithm>
#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

// Extrapolates from the two measured sizes to the requested one.
struct Line {
  double steps = 0;  // distance beyond the large size, in units of the distance between the two
  double proportion = 1;  // the requested size divided by the large one

  Bytes bytes(Bytes small, Bytes large) const {
    const double slope = static_cast<double>(large) - static_cast<double>(small);
    return static_cast<Bytes>(
        std::llround(std::max(0.0, static_cast<double>(large) + steps * slope)));
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

LayerProfile extrapolate(const LayerProfile& small, double small_size, const LayerProfile& large,
                         double large_size, double size) {
  if (!(small_size > 0 && small_size < large_size && large_size <= size && std::isfinite(size)))
    throw UsageError(
        text("cannot extrapolate from the sizes ", small_size, " and ", large_size, " to ", size),
        {.hint = "The sizes must be above 0 and ascend."});
  check_same(small, large);
  const Line line{.steps = (size - large_size) / (large_size - small_size),
                  .proportion = size / large_size};
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
    line.extend(a.forward_messages, &b.forward_messages);
    line.extend(a.backward_messages, &b.backward_messages);
  }
  for (std::size_t i = 0; i < result.values.size(); ++i)
    result.values[i].bytes = line.bytes(small.values[i].bytes, large.values[i].bytes);
  result.examples = 0;
  return result;
}

}  // namespace trestle::plan
