#include "trestle/checkpoint/files/pickle/pickled_array.h"

#include <algorithm>
#include <cstring>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickle/pickled_file.h"
#include "trestle/checkpoint/files/pickle/pickled_state_dict.h"
#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {

namespace {

PickledFile::Named find_array(const PickledFile& file, const std::string& name) {
  const Pickle& pickle = file.pickle();
  if (pickle.root.kind == PickledValue::Kind::Tensor) {
    if (!name.empty())
      throw FormatError(text("has a single tensor without a name, not '", name, "'"),
                        {.file = file.path(), .hint = text("Leave out ':", name, "'.")});
    return {"", pickle.root.place()};
  }
  if (pickle.root.kind != PickledValue::Kind::Dict)
    throw FormatError(
        "has neither a tensor nor a dict of tensors",
        {.file = file.path(), .hint = "In Python: torch.save({\"x\": x, \"y\": y}, file)."});
  for (const auto& [key, value] : pickle.dicts[pickle.root.place()])
    if (!name.empty() && key.kind == PickledValue::Kind::String && key.text == name &&
        value.kind == PickledValue::Kind::Tensor)
      return {name, value.place()};
  const PickledStateDict found = find_state_dict(pickle, file.path());
  std::vector<std::string> names;
  for (const NamedPickledTensor& one : found.tensors) names.push_back(shown(one.name));
  constexpr std::size_t most_shown = 20;
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most_shown));
  const std::string listed =
      join(std::vector(names.begin(), end), ", ") + (names.size() > most_shown ? ", ..." : "");
  if (name.empty() && names.size() > 1)
    throw FormatError(
        text("it has ", names.size(), " tensors: ", listed),
        {.file = file.path(), .hint = text("Choose one: ", file.path(), ":", names[0])});
  for (const NamedPickledTensor& one : found.tensors)
    if (name.empty() || one.name == name) return {one.name, one.tensor};
  throw FormatError(text("there is no tensor '", name, "' in it", did_you_mean(name, names)),
                    {.file = file.path(), .hint = text("It has ", listed, ".")});
}

bool is_contiguous(const PickledTensor& tensor, std::uint64_t elements) {
  std::int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i > 0; --i) {
    if (tensor.shape[i - 1] != 1 && tensor.strides[i - 1] != stride) return false;
    stride *= tensor.shape[i - 1];
  }
  return tensor.offset == 0 && static_cast<std::uint64_t>(stride) == elements;
}

// Copies the elements in row-major order, wherever they are in the storage.
std::string to_contiguous(const PickledTensor& tensor, const std::string& storage,
                          std::size_t size) {
  std::int64_t count = 1;
  for (const std::int64_t side : tensor.shape) count *= side;
  std::string bytes(static_cast<std::size_t>(count) * size, '\0');
  std::vector<std::int64_t> at(tensor.shape.size(), 0);
  std::int64_t from = tensor.offset;
  for (std::int64_t to = 0; to < count; ++to) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(to) * size,
                storage.data() + static_cast<std::size_t>(from) * size, size);
    for (std::size_t i = at.size(); i > 0; --i) {
      if (++at[i - 1] < tensor.shape[i - 1]) {
        from += tensor.strides[i - 1];
        break;
      }
      // Never one step too far: the stride of a dimension of size 1 may be any number.
      from -= tensor.strides[i - 1] * (tensor.shape[i - 1] - 1);
      at[i - 1] = 0;
    }
  }
  return bytes;
}

}  // namespace

PickledArray read_pickled_array(const std::filesystem::path& path, const std::string& name) {
  const PickledFile file(path);
  const PickledFile::Named found = find_array(file, name);
  file.check({found});
  const PickledTensor& tensor = file.pickle().tensors[found.tensor];
  const PickledStorage& storage = file.pickle().storages[tensor.storage];
  const auto size = static_cast<std::size_t>(dtype_bytes(storage.dtype));
  std::string bytes(storage.elements * size, '\0');
  file.read_storage(tensor.storage, bytes.data(), bytes.size());
  if (!is_contiguous(tensor, storage.elements)) bytes = to_contiguous(tensor, bytes, size);
  return {storage.dtype, tensor.shape, std::move(bytes), tensor.negated};
}

}  // namespace trestle::checkpoint
