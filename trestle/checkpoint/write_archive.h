#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// Writes a file of torch.save: this pickle, and the record "data/<i>" for each tensor.
void write_archive(std::ostream& out, const std::string& pickle, std::size_t tensors,
                   const std::function<at::Tensor(std::size_t)>& tensor);

}  // namespace trestle::checkpoint
