#include "trestle/checkpoint/sliced_weights.h"

#include "trestle/checkpoint/box_read.h"
#include "trestle/checkpoint/rank_slices.h"

namespace trestle::checkpoint {

LoadReport load_sliced_weights(const NamedTensors& into, const nn::ParameterSlices& slices,
                               const std::filesystem::path& path, LoadOptions options) {
  NamedTensors boxes;
  options.boxes.clear();
  for (const auto& [name, tensor] : into) {
    const auto slice = slices.find(name);
    if (slice == slices.end()) {
      boxes.emplace_back(name, tensor);
      continue;
    }
    const Box own = whole_box(slice->second.shape());
    for (const SlicedBox& box : in_whole_tensor(own, slice->second)) {
      options.boxes[boxes.size()] = {.offset = box.whole.offset, .whole = slice->second.whole};
      boxes.emplace_back(name, box_view(tensor.detach(), own.offset, box.own));
    }
  }
  return load_weights(boxes, path, options);
}

}  // namespace trestle::checkpoint
