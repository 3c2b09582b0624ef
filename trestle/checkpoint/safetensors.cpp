#include "trestle/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/safetensors_file.h"

namespace trestle::checkpoint {

namespace {

SafetensorsHeader header_of(const NamedTensors& tensors,
                            const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{{}, metadata};
  std::set<std::string> seen;
  std::uint64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    check_writable(name, tensor);
    if (name == "__metadata__" || !seen.insert(name).second)
      throw UsageError(text("two tensors to be saved are called '", name, "'"));
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
  write_tensors(path, tensors, metadata, {});
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata,
                   const std::function<void(std::size_t, std::string_view)>& seen) {
  const std::string header = format_header(header_of(tensors, metadata));
  const std::uint64_t length = header.size();
  write_file(path, [&](std::ostream& out) {
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      // One tensor at a time, so that a device's tensors are never all on the host at once.
      const at::Tensor rows = tensors[i].second.detach().to(at::kCPU).resolve_neg().contiguous();
      const std::string_view bytes(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
      out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      if (seen) seen(i, bytes);
    }
  });
}

TensorFile read_tensors(const std::filesystem::path& path) {
  const auto file = open_safetensors(path);
  return {file->read(), file->metadata()};
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
                              source.sizes(), ", but the model's is ",
                              c10::toString(tensor.scalar_type()), " ", tensor.sizes()));
  }
  std::set<std::string> wanted;
  for (const auto& [name, tensor] : into) wanted.insert(name);
  for (const auto& [name, tensor] : from)
    if (!wanted.contains(name)) problems.push_back(text("'", name, "' is not in the model"));
  if (!problems.empty()) {
    const std::size_t count = problems.size();
    if (count > 5) problems.resize(5);
    throw FormatError(text("these weights do not match the model, ", count,
                           " differences: ", join(problems, "; "), count > 5 ? "; ..." : ""),
                      {.file = file, .hint = "Use the recipe saved in the same folder."});
  }
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : into) {
    at::Tensor target = tensor.detach();
    target.copy_(given.at(name));
  }
}

}  // namespace trestle::checkpoint
