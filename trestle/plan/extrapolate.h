#pragma once

#include "trestle/plan/layer_profile.h"

namespace trestle::plan {

// The profile of an input that nobody measured, from those of two smaller ones: each number of bytes
// lies on the line through the two, which is exact for values, and for what most layers keep; each
// time too, but never above the larger one's in proportion, nor below it. `size` counts what the cost
// grows with, in any unit: examples of a micro-batch, or their pixels.
//
// Throws UsageError unless 0 < small_size < large_size <= size and both profiles are of the same
// model (layers, values and what is together agree), and as check() does.
//
//   const LayerProfile whole = extrapolate(of_64_pixels, 64 * 64, of_128_pixels, 128 * 128, 512 * 512);
LayerProfile extrapolate(const LayerProfile& small, double small_size, const LayerProfile& large,
                         double large_size, double size);

}  // namespace trestle::plan
