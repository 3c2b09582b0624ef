#include "trestle/checkpoint/files/pickle/tensor_archive.h"

#include <cstring>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/box.h"
#include "trestle/checkpoint/files/range_boxes.h"
#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {

namespace {

template <class Number>
double number_in(const char* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return static_cast<double>(number);
}

}  // namespace

TensorArchive::TensorArchive(const FileBytes& file, std::uint64_t begin, std::uint64_t bytes,
                             const PickleOptions& options)
    : file_(file), records_(find_zip_records(file, begin, bytes)) {
  constexpr std::string_view pickle_name = "data.pkl";
  for (const auto& [entry, record] : records_)
    if (const std::size_t slash = entry.find('/');
        slash != std::string::npos && entry.substr(slash + 1) == pickle_name)
      folder_ = entry.substr(0, slash + 1);
  const auto found = records_.find(folder_ + std::string(pickle_name));
  if (found == records_.end())
    fail("it is a zip archive without data.pkl, so torch.save did not write it");
  if (const auto order = records_.find(folder_ + "byteorder"); order != records_.end())
    if (order->second.bytes > 16 ||
        file_.read(order->second.begin, order->second.bytes) != "little")
      throw FormatError("was written on a big-endian machine",
                        {.file = name(), .hint = "Save it again on a little-endian machine."});
  const ZipRecord& record = found->second;
  if (record.bytes > longest_pickle)
    fail(text("its pickle has ", record.bytes, " bytes, more than the limit of ", longest_pickle));
  if (file_.crc32(record.begin, record.bytes) != record.crc)
    fail("its pickle is broken: its checksum differs");
  bytes_ = file_.read(record.begin, record.bytes);
  pickle_ = parse_pickle(bytes_, name(), options);
}

void TensorArchive::fail(const std::string& what) const {
  throw FormatError(text("cannot trust the tensors in this file: ", what), {.file = name()});
}

const Pickle::Dict& TensorArchive::dict(const PickledValue& value, const std::string& what) const {
  if (value.kind != PickledValue::Kind::Dict) fail(text(what, " is not a dict"));
  return pickle_.dicts[value.place()];
}

const std::vector<PickledValue>& TensorArchive::sequence(const PickledValue& value,
                                                         const std::string& what) const {
  if (value.kind != PickledValue::Kind::Sequence) fail(text(what, " is not a list"));
  return pickle_.sequences[value.place()];
}

const PickledValue* TensorArchive::find(const PickledValue& in, std::string_view key) const {
  const PickledValue* found = nullptr;
  for (const auto& [name, value] : dict(in, text("the value with '", key, "'")))
    if (name.kind == PickledValue::Kind::String && name.text == key) {
      if (found) fail(text("the key '", key, "' is there twice"));
      found = &value;
    }
  return found;
}

const PickledValue& TensorArchive::at(const PickledValue& in, std::string_view key) const {
  const PickledValue* const found = find(in, key);
  if (!found) fail(text("it has no '", key, "'"));
  return *found;
}

std::int64_t TensorArchive::count(const PickledValue& value, const std::string& what) const {
  if (value.kind != PickledValue::Kind::Integer || value.number < 0)
    fail(text(what, " is not a count"));
  return value.number;
}

std::vector<std::int64_t> TensorArchive::shape(const PickledValue& value,
                                               const std::string& what) const {
  constexpr std::size_t most_dimensions = 64;
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 8;  // bytes of the largest type
  for (const PickledValue& size : sequence(value, what)) {
    sizes.push_back(count(size, what));
    if (sizes.back() > 0 && __builtin_mul_overflow(elements, sizes.back(), &elements))
      fail(text(what, " is larger than any memory"));
  }
  if (sizes.size() > most_dimensions) fail(text(what, " has too many dimensions"));
  return sizes;
}

StoredElements TensorArchive::elements(const PickledTensor& tensor, const std::string& what) const {
  const auto order = memory_order(tensor.shape, tensor.strides);
  bool in_rows = order.has_value() && !tensor.negated;
  // Dimensions of size 1 come first in the order and may be anywhere.
  std::int64_t before = -1;
  for (std::size_t i = 0; in_rows && i < order->size(); ++i) {
    const std::int64_t dimension = (*order)[i];
    if (tensor.shape[static_cast<std::size_t>(dimension)] == 1) continue;
    in_rows = dimension > before;
    before = dimension;
  }
  if (!in_rows)
    throw FormatError(text(what, " is not stored row after row"),
                      {.file = name(), .hint = "Save tensor.contiguous() instead."});
  const PickledStorage& storage = pickle_.storages[tensor.storage];
  const auto found = records_.find(folder_ + "data/" + storage.key);
  const auto each = static_cast<std::uint64_t>(dtype_bytes(storage.dtype));
  std::uint64_t bytes = 0;
  if (found == records_.end() || __builtin_mul_overflow(storage.elements, each, &bytes) ||
      bytes > found->second.bytes)
    fail(
        text("storage '", shown(storage.key), "' of ", what, " has ", storage.elements,
             " elements, but its entry ",
             found == records_.end() ? "is missing" : text("has ", found->second.bytes, " bytes")));
  return {found->second, static_cast<std::uint64_t>(tensor.offset) * each, storage.dtype};
}

double TensorArchive::number(const PickledValue& value, const std::string& what) const {
  using Kind = PickledValue::Kind;
  if (value.kind == Kind::Integer || value.kind == Kind::Bool)
    return static_cast<double>(value.number);
  if (value.kind == Kind::Real) return value.real();
  if (value.kind != Kind::Tensor) fail(text(what, " is not a number"));
  const PickledTensor& tensor = pickle_.tensors[value.place()];
  if (elements_of(tensor.shape) != 1) fail(text(what, " is not a single number"));
  const StoredElements stored = elements(tensor, what);
  char bytes[8] = {};
  file_.read(stored.record.begin + stored.begin, bytes,
             static_cast<std::uint64_t>(dtype_bytes(stored.dtype)));
  if (stored.dtype == "F32") return number_in<float>(bytes);
  if (stored.dtype == "F64") return number_in<double>(bytes);
  if (stored.dtype == "I64") return number_in<std::int64_t>(bytes);
  if (stored.dtype == "I32") return number_in<std::int32_t>(bytes);
  fail(text(what, " is a number of type ", stored.dtype));
}

}  // namespace trestle::checkpoint
