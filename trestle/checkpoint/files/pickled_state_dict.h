#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/pickle.h"

// A model's weights as Python pickles them: a dict from names to tensors. No torch in here.
namespace trestle::checkpoint {

// A tensor of a file, and its name.
struct NamedPickledTensor {
  std::string name;
  std::size_t tensor = 0;  // of Pickle::tensors
};

struct PickledStateDict {
  std::vector<NamedPickledTensor> tensors;
  std::vector<std::string> others;  // names of entries that are no tensors
};

// The one dict of tensors in there: the pickled value itself, or the one entry of it that is a dict
// with tensors, as "state_dict" or "model" is where training programs save more than weights.
// Throws FormatError that lists the keys where there is none, or more than one.
PickledStateDict find_state_dict(const Pickle& pickle, const std::string& file);

// The pickle of a state_dict whose tensors are whole storages, row by row: number i is storage
// "<i>". Python's torch.load reads it, weights_only too.
struct TensorToPickle {
  std::string name;
  std::string dtype;  // as in PickledStorage
  std::vector<std::int64_t> shape;
};
std::string format_pickle(const std::vector<TensorToPickle>& tensors);

}  // namespace trestle::checkpoint
