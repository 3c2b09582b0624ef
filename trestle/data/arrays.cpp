#include "trestle/data/arrays.h"

#include <cstring>

#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickled_array.h"
#include "trestle/data/files/npy.h"

namespace trestle::data {
namespace {

at::ScalarType type_of(const std::string& type) {
  if (type == "b1") return at::kBool;
  if (type == "u1") return at::kByte;
  if (type == "i1") return at::kChar;
  if (type == "u2") return at::kUInt16;
  if (type == "i2") return at::kShort;
  if (type == "u4") return at::kUInt32;
  if (type == "i4") return at::kInt;
  if (type == "i8") return at::kLong;
  if (type == "f2") return at::kHalf;
  return type == "f4" ? at::kFloat : at::kDouble;
}

// The dtypes of torch.save.
at::ScalarType type_of_tensor(const std::string& dtype) {
  if (dtype == "BOOL") return at::kBool;
  if (dtype == "U8") return at::kByte;
  if (dtype == "I8") return at::kChar;
  if (dtype == "I16") return at::kShort;
  if (dtype == "I32") return at::kInt;
  if (dtype == "I64") return at::kLong;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F32") return at::kFloat;
  if (dtype == "F64") return at::kDouble;
  throw FormatError(text("arrays of type ", dtype, " cannot be read"));
}

at::Tensor to_tensor(const std::string& place, const std::vector<std::int64_t>& shape,
                     at::ScalarType type, const std::string& bytes) {
  if (shape.empty() || bytes.empty())
    throw FormatError(text("the array has the shape [", join(shape, ", "), "]: no examples"),
                      {.file = place, .hint = "Examples are counted by the first dimension."});
  at::Tensor tensor = at::empty(shape, type);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor read_tensor(const std::string& place) {
  const std::filesystem::path file = file_of_array(place);
  if (!std::filesystem::exists(file))
    throw UsageError("no such file", {.file = file.string(),
                                      .hint = "Give the .npy, .npz or .pt file of your data."});
  at::Tensor tensor;
  if (file.extension() == ".pt" || file.extension() == ".pth") {
    const std::size_t name = file.string().size() + 1;
    const checkpoint::PickledArray array =
        checkpoint::read_pickled_array(file, name < place.size() ? place.substr(name) : "");
    tensor = to_tensor(place, array.shape, type_of_tensor(array.dtype), array.bytes);
    if (array.negated) tensor = tensor.neg();
  } else {
    const NpyArray array = read_npy(place);
    tensor = to_tensor(place, array.shape, type_of(array.type), array.bytes);
  }
  return tensor;
}

}  // namespace

ArrayDataset::ArrayDataset(const std::string& inputs, const std::string& targets)
    : inputs_(read_tensor(inputs)), targets_(read_tensor(targets)) {
  if (inputs_.size(0) != targets_.size(0))
    throw FormatError(text("there are ", targets_.size(0), " targets, but ", inputs_.size(0),
                           " examples in ", inputs),
                      {.file = targets});
  const bool bytes = inputs_.scalar_type() == at::kByte;
  const bool numbers = bytes || inputs_.is_floating_point();
  if (!bytes) inputs_ = inputs_.to(numbers ? at::kFloat : at::kLong);
  targets_ = targets_.to(targets_.is_floating_point() ? at::kFloat : at::kLong);
}

Sample ArrayDataset::get(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw UsageError(text("example ", index, " of ", size(), " in the arrays"));
  at::Tensor input = inputs_[index];
  if (input.scalar_type() == at::kByte) input = input.to(at::kFloat).div_(255);
  return {std::move(input), targets_[index], std::to_string(index)};
}

std::int64_t ArrayDataset::classes() const {
  if (targets_.scalar_type() != at::kLong || targets_.min().item<std::int64_t>() < 0) return 0;
  return targets_.max().item<std::int64_t>() + 1;
}

}  // namespace trestle::data
