#pragma once

#include <filesystem>

#include "trestle/checkpoint/weights.h"
#include "trestle/nn/parameter_slice.h"

// Not installed.
namespace trestle::checkpoint {

// As load_weights(), where `into` has slices of the file's tensors: each rank of a split reads its
// own. `slices` has the places of the tensors that are not whole. options.boxes is not used.
LoadReport load_sliced_weights(const NamedTensors& into, const nn::ParameterSlices& slices,
                               const std::filesystem::path& path, LoadOptions options = {});

}  // namespace trestle::checkpoint
