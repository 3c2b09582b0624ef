#include "trestle/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/safetensors_header.h"

namespace trestle::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr std::array<std::pair<const char*, at::ScalarType>, 10> types = {{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

std::string dtype_name(const std::string& tensor, at::ScalarType type) {
  for (const auto& [name, scalar] : types)
    if (scalar == type) return name;
  throw UsageError(text("tensor '", tensor, "' is of type ", c10::toString(type),
                        ", which a safetensors file cannot hold"),
                   {.hint = "Convert it first, for example to float."});
}

at::ScalarType scalar_type(const std::string& dtype) {
  for (const auto& [name, scalar] : types)
    if (dtype == name) return scalar;
  throw FormatError(text("unknown type ", dtype));
}

SafetensorsHeader header_of(const NamedTensors& tensors,
                            const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{{}, metadata};
  std::set<std::string> seen;
  std::uint64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined())
      throw UsageError(text("tensor '", name, "' is undefined, it cannot be saved"));
    if (name == "__metadata__" || !seen.insert(name).second)
      throw UsageError(text("two tensors to be saved are called '", name, "'"));
    if (tensor.layout() != at::kStrided || tensor.is_quantized())
      throw UsageError(text("tensor '", name, "' is sparse or quantised, it cannot be saved"));
    const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header.tensors.push_back({name, dtype_name(name, tensor.scalar_type()), tensor.sizes().vec(),
                              position, position + bytes});
    position += bytes;
  }
  return header;
}

}  // namespace

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  const std::string header = format_header(header_of(tensors, metadata));
  const std::uint64_t length = header.size();
  write_file(path, [&](std::ostream& out) {
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const auto& [name, tensor] : tensors) {
      // One tensor at a time: a device's tensors are never all on the host at once.
      const at::Tensor rows = tensor.detach().to(at::kCPU).contiguous();
      out.write(static_cast<const char*>(rows.const_data_ptr()),
                static_cast<std::streamsize>(rows.nbytes()));
    }
  });
}

TensorFile read_tensors(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none))
    throw FileError("no such file of weights", {.file = path.string()});
  std::ifstream in(path, std::ios::binary);
  const std::uint64_t size = std::filesystem::file_size(path, none);
  if (!in || none)
    throw FileError(text("cannot be read: ", std::strerror(errno)), {.file = path.string()});
  std::uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  if (size < 8 || length > size - 8 || length > longest_header)
    throw FormatError(
        text("not a safetensors file: ", size, " bytes long, with a header said to be ", length),
        {.file = path.string()});
  std::string json(length, '\0');
  in.read(json.data(), static_cast<std::streamsize>(length));
  const SafetensorsHeader header = parse_header(json, size - 8 - length, path.string());

  TensorFile file{{}, header.metadata};
  for (const TensorEntry& entry : header.tensors) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type(entry.dtype)));
    in.read(static_cast<char*>(tensor.mutable_data_ptr()),
            static_cast<std::streamsize>(entry.end - entry.begin));
    file.tensors.emplace_back(entry.name, std::move(tensor));
  }
  if (!in) throw FileError("could not be read to its end", {.file = path.string()});
  return file;
}

void copy_into(const NamedTensors& from, const NamedTensors& into, const std::string& file) {
  std::map<std::string, at::Tensor> given(from.begin(), from.end());
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : into) {
    const auto found = given.find(name);
    if (found == given.end()) {
      problems.push_back(text("'", name, "' is missing"));
      continue;
    }
    const at::Tensor& source = found->second;
    if (source.sizes() != tensor.sizes() || source.scalar_type() != tensor.scalar_type())
      problems.push_back(text("'", name, "' is ", c10::toString(source.scalar_type()), " ",
                              source.sizes(), ", the model's is ",
                              c10::toString(tensor.scalar_type()), " ", tensor.sizes()));
  }
  std::set<std::string> wanted;
  for (const auto& [name, tensor] : into) wanted.insert(name);
  for (const auto& [name, tensor] : from)
    if (!wanted.contains(name)) problems.push_back(text("'", name, "' is not in the model"));
  if (!problems.empty()) {
    const std::size_t count = problems.size();
    if (count > 5) problems.resize(5);
    throw FormatError(text("these weights are not this model's, ", count,
                           " differences: ", join(problems, "; "), count > 5 ? "; ..." : ""),
                      {.file = file, .hint = "Use the recipe that was saved beside them."});
  }
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : into) {
    at::Tensor target = tensor.detach();
    target.copy_(given.at(name));
  }
}

}  // namespace trestle::checkpoint
