#include "trestle/data/arrays.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/content_hash.h"
#include "trestle/checkpoint/files/pickle/pickled_array.h"
#include "trestle/data/files/npy.h"
#include "trestle/data/segmentation.h"

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

// Tables and other formats have no shape and type of their own; Python converts them.
void refuse_other_formats(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool table = ending == ".csv" || ending == ".tsv" || ending == ".txt";
  if (table)
    throw UsageError(
        text("is a table of text (", ending, "), and arrays are .npy, .npz or .pt files"),
        {.file = file.string(),
         .hint = text("Convert it in Python: numpy.save(\"x.npy\", numpy.loadtxt(\"",
                      file.filename().string(),
                      "\", dtype=\"float32\", delimiter=", ending == ".csv" ? "\",\"" : "\"\\t\"",
                      ", skiprows=1)), where skiprows leaves out a line of names.")});
  for (const char* other : {".h5", ".hdf5", ".parquet", ".mat", ".json", ".pkl", ".xlsx"})
    if (ending == other)
      throw UsageError(text("is a ", ending, " file, and arrays are .npy, .npz or .pt files"),
                       {.file = file.string(), .hint = "Save the arrays with numpy.save()."});
}

// float32 has 24 bits: larger integers would change without a message.
at::Tensor to_float(const at::Tensor& integers, const std::string& place) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  const at::Tensor wide = integers.to(at::kLong);
  for (const std::int64_t extreme :
       {wide.max().item<std::int64_t>(), wide.min().item<std::int64_t>()})
    if (extreme > most || extreme < -most)
      throw FormatError(text("the inputs have the value ", extreme,
                             ", and inputs become float32, which has integers up to ", most),
                        {.file = place, .hint = "Scale them, or save them as float32."});
  return wide.to(at::kFloat);
}

at::Tensor read_tensor(const std::string& place) {
  const std::filesystem::path file = file_of_array(place);
  refuse_other_formats(file);
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
  if (inputs_.is_floating_point())
    inputs_ = inputs_.to(at::kFloat);
  else if (!bytes)  // bytes become floats example by example: they take a quarter of the memory
    inputs_ = to_float(inputs_, inputs);
  targets_ = targets_.to(targets_.is_floating_point() ? at::kFloat : at::kLong);
}

Sample ArrayDataset::get(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw UsageError(text("example ", index, " of ", size(), " in the arrays"));
  at::Tensor input = inputs_[index];
  if (input.scalar_type() == at::kByte) input = input.to(at::kFloat).div_(255);
  return {std::move(input), targets_[index], std::to_string(index)};
}

std::uint64_t ArrayDataset::content_hash() const {
  std::string hashes;
  for (const at::Tensor& tensor : {inputs_.contiguous(), targets_.contiguous()}) {
    const auto* const bytes = static_cast<const char*>(tensor.const_data_ptr());
    hashes += text(checkpoint::content_hash({bytes, tensor.nbytes()}), tensor.dtype(),
                   join(tensor.sizes(), " "));
  }
  return std::stoull(checkpoint::content_hash(hashes), nullptr, 16);
}

std::int64_t ArrayDataset::ignored_count() const {
  if (targets_.scalar_type() != at::kLong) return 0;
  return targets_.eq(ignored_target).sum().item<std::int64_t>();
}

std::int64_t ArrayDataset::classes() const {
  if (targets_.scalar_type() != at::kLong) return 0;
  return std::max<std::int64_t>(0, targets_.max().item<std::int64_t>() + 1);
}

}  // namespace trestle::data
