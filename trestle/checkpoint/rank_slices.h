#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/files/box.h"
#include "trestle/nn/parameter_slice.h"

// Slices of parameters (tensor parallelism) in checkpoints of whole tensors: each rank writes and
// reads its slices, so that ranks of any number read what others wrote.
namespace trestle::checkpoint {

struct TensorShard;
using TensorGroups = std::map<std::string, std::vector<TensorShard>>;

// A rank's slices, and whether it writes the tensors that all ranks of the split hold whole: one of
// them does. By default all tensors are whole, and are written.
struct RankSlices {
  nn::ParameterSlices parameters = {};
  bool writes_whole_tensors = true;

  bool any() const { return !parameters.empty() || !writes_whole_tensors; }
};

// The slice of a tensor of this name, which may be a parameter's state "<parameter>.<state>"; null
// for most.
const nn::ParameterSlice* find_slice(const nn::ParameterSlices& slices, std::string_view name);

// A box of a rank's slice as boxes of the whole tensor, each with the part of the slice that it is.
struct SlicedBox {
  Box whole;
  Box own;
};
std::vector<SlicedBox> in_whole_tensor(const Box& own, const nn::ParameterSlice& slice);

// The boxes of whole tensors that a rank writes, given its own tensors or boxes of them. The state
// of a sliced parameter is sliced too where it has the slice's shape.
TensorGroups in_whole_tensors(const TensorGroups& own, const RankSlices& slices);

}  // namespace trestle::checkpoint
