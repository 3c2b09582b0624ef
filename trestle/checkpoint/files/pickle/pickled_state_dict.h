#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/pickle/pickle.h"

// A model's weights as pickled by Python: a dict from names to tensors. Torch-free.
namespace trestle::checkpoint {

// A tensor of a file, and its name.
struct NamedPickledTensor {
  std::string name;
  std::size_t tensor = 0;  // of Pickle::tensors
};

struct PickledStateDict {
  std::vector<NamedPickledTensor> tensors;
  std::vector<std::string> others;  // names of entries that are not tensors
};

// Finds the only dict of tensors: the pickled value itself, or the one entry of it that is a dict
// with tensors. Training programs often save weights as "state_dict" or "model" among other
// entries. Throws FormatError that lists the keys if there is none, or more than one.
PickledStateDict find_state_dict(const Pickle& pickle, const std::string& file);

// The pickle of a state_dict whose tensors are whole contiguous storages: tensor i is storage
// "<i>". Python's torch.load can read it, also with weights_only.
struct TensorToPickle {
  std::string name;
  std::string dtype;  // as in PickledStorage
  std::vector<std::int64_t> shape;
};
std::string format_pickle(const std::vector<TensorToPickle>& tensors);

}  // namespace trestle::checkpoint
