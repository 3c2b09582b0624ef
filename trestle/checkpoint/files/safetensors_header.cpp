#include "trestle/checkpoint/files/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/strict_json.h"

namespace trestle::checkpoint {

namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw FormatError(text("cannot trust this safetensors file: ", what), {.file = file});
}

TensorEntry parse_entry(const std::string& name, const json& value, const std::string& file) {
  auto bad = [&](const std::string& what) { fail(file, text("tensor '", name, "' ", what)); };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    bad("lacks dtype, shape or data_offsets");
  const json& dtype = value["dtype"];
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  if (!dtype.is_string() || dtype_bytes(dtype.get<std::string>()) == 0)
    bad(text("has the type ", dtype.dump(-1, ' ', true, json::error_handler_t::replace),
             ", which is not one of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL"));
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count))
    bad("has a shape that is not a list of sizes");
  if (!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) || !is_count(offsets[1]))
    bad("has data_offsets that are not two positions");
  TensorEntry entry{name, dtype.get<std::string>(), {}, offsets[0], offsets[1]};
  std::uint64_t bytes = static_cast<std::uint64_t>(dtype_bytes(entry.dtype));
  std::int64_t not_empty = 1;
  for (const json& size : shape) {
    const auto count = size.get<std::uint64_t>();
    entry.shape.push_back(static_cast<std::int64_t>(count));
    if (__builtin_mul_overflow(bytes, count, &bytes)) bad("is larger than any memory");
    // libtorch multiplies the sizes of an empty tensor too.
    if (count > 0 &&
        __builtin_mul_overflow(not_empty, static_cast<std::int64_t>(count), &not_empty))
      bad("is larger than any memory");
  }
  if (entry.begin > entry.end || entry.end - entry.begin != bytes)
    bad(text("of shape [", join(entry.shape, ", "), "] needs ", bytes,
             " bytes, but its data_offsets are [", entry.begin, ", ", entry.end, "]"));
  return entry;
}

}  // namespace

int dtype_bytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return 0;
}

SafetensorsHeader parse_header(std::string_view bytes, std::uint64_t data_bytes,
                               const std::string& file) {
  const json parsed = parse_object(bytes, "cannot trust this safetensors file: its header", file);
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name != "__metadata__") {
      header.tensors.push_back(parse_entry(name, value, file));
      continue;
    }
    if (!value.is_object()) fail(file, "its __metadata__ is not an object");
    for (const auto& [key, word] : value.items()) {
      if (!word.is_string()) fail(file, text("its __metadata__ '", key, "' is not a string"));
      header.metadata[key] = word.get<std::string>();
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != expected)
      fail(file,
           text("tensor '", entry.name, "' begins at byte ", entry.begin, ", expected ", expected));
    expected = entry.end;
  }
  if (expected != data_bytes)
    fail(file, text("its tensors end at byte ", expected, " of the data, but the file has ",
                    data_bytes, "; it was cut short or bytes were appended"));
  return header;
}

std::string format_header(const SafetensorsHeader& header) {
  json out = json::object();
  if (!header.metadata.empty()) out["__metadata__"] = header.metadata;
  for (const TensorEntry& entry : header.tensors)
    out[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  std::string bytes;
  try {
    bytes = out.dump();
  } catch (const json::exception&) {
    throw UsageError("the name of a tensor, or a string of the metadata, is not UTF-8");
  }
  const std::size_t with_length = sizeof(std::uint64_t) + bytes.size();
  const std::size_t data = (with_length + data_alignment - 1) / data_alignment * data_alignment;
  bytes.resize(data - sizeof(std::uint64_t), ' ');
  return bytes;
}

}  // namespace trestle::checkpoint
