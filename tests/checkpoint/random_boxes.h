#pragma once

#include <algorithm>
#include <vector>

#include "trestle/base/random.h"
#include "trestle/checkpoint/files/box.h"

namespace trestle::checkpoint {

inline std::int64_t below(Random& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(bound)));
}

inline Sizes random_shape(Random& random, std::int64_t most_dimensions, std::int64_t most) {
  Sizes shape(static_cast<std::size_t>(below(random, most_dimensions + 1)));
  for (std::int64_t& size : shape) size = 1 + below(random, most);
  return shape;
}

// Cuts a box into random smaller boxes: `boxes` of them, or fewer if nothing is left to cut.
inline std::vector<Box> random_cut(Random& random, const Sizes& shape, int boxes) {
  std::vector<Box> all = {whole_box(shape)};
  for (int i = 1; i < boxes && !shape.empty(); ++i) {
    const auto which =
        static_cast<std::size_t>(below(random, static_cast<std::int64_t>(all.size())));
    const auto d = static_cast<std::size_t>(below(random, static_cast<std::int64_t>(shape.size())));
    if (all[which].sizes[d] < 2) continue;
    Box second = all[which];
    const std::int64_t first = 1 + below(random, second.sizes[d] - 1);
    all[which].sizes[d] = first;
    second.offset[d] += first;
    second.sizes[d] -= first;
    all.push_back(second);
  }
  shuffle(all, random);
  return all;
}

inline Box random_box(Random& random, const Sizes& shape) {
  Box box = whole_box(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.sizes[d] = 1 + below(random, shape[d]);
    box.offset[d] = below(random, shape[d] - box.sizes[d] + 1);
  }
  return box;
}

}  // namespace trestle::checkpoint
