#pragma once

#include "trestle/plan/layer_profile.h"

namespace trestle::plan {

// The bytes of `size`, from those of two smaller sizes. `parts`: the equal parts that `size`
// consists of, such as the pictures of a micro-batch. Bytes that grow faster than in proportion do
// so within each part.
Bytes extrapolate_bytes(Bytes small, double small_size, Bytes large, double large_size, double size,
                        double parts = 1);

// Extrapolates the profile of an input that was not measured from the profiles of two smaller
// inputs. Each number of bytes lies on the line through the two; that is exact for values and for
// what most layers keep. Bytes that grow faster than in proportion, as those of an attention over
// pixels, lie on the parabola through the two and the origin. Each time lies on its line too, but
// stays between the larger input's time and that time scaled in proportion. `size` is what the cost
// grows with, in any unit: the examples of a micro-batch, or their pixels.
//
// Throws UsageError unless 0 < small_size < large_size <= size and both profiles are of the same
// model (equal layers, values and shared parameters), and throws what check() throws.
//
//   const LayerProfile whole =
//       extrapolate(of_64_pixels, 64 * 64, of_128_pixels, 128 * 128, 512 * 512);
LayerProfile extrapolate(const LayerProfile& small, double small_size, const LayerProfile& large,
                         double large_size, double size, double parts = 1);

}  // namespace trestle::plan
