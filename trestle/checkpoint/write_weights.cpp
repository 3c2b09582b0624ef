#include <ATen/core/Tensor.h>
#include <caffe2/serialize/inline_container.h>

#include <ostream>
#include <set>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/pickle/pickled_state_dict.h"
#include "trestle/checkpoint/files/weight_names.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/checkpoint/write_archive.h"

namespace trestle::checkpoint {

namespace {

constexpr const char* safetensors_ending = ".safetensors";

std::vector<TensorToPickle> described(const NamedTensors& tensors) {
  std::vector<TensorToPickle> all;
  std::set<std::string> seen;
  for (const auto& [name, tensor] : tensors) {
    check_writable(name, tensor);
    if (!seen.insert(name).second)
      throw UsageError(text("two tensors to be saved are called '", name, "'"));
    all.push_back({name, dtype_name(name, tensor.scalar_type()), tensor.sizes().vec()});
  }
  return all;
}

}  // namespace

// Uses libtorch's own writer, as torch.save does.
void write_archive(std::ostream& out, const std::string& pickle, std::size_t tensors,
                   const std::function<at::Tensor(std::size_t)>& tensor) {
  caffe2::serialize::PyTorchStreamWriter writer([&out](const void* bytes, std::size_t count) {
    out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
    return count;
  });
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  const std::string_view order = "little";
  writer.writeRecord("byteorder", order.data(), order.size());
  for (std::size_t i = 0; i < tensors; ++i) {
    // One tensor at a time, so that a device's tensors are never all on the host at once.
    const at::Tensor rows = tensor(i).detach().to(at::kCPU).resolve_neg().contiguous();
    writer.writeRecord(text("data/", i), rows.const_data_ptr(), rows.nbytes());
  }
  writer.writeEndOfFile();
}

void check_weights_ending(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  if (ending == safetensors_ending || ending == ".pt" || ending == ".pth") return;
  throw UsageError(text(path.string(), ": this ending is not one of a weights file"),
                   {.hint = "Use .pt or .pth for torch.load, or .safetensors."});
}

NamedTensors rename_weights(NamedTensors tensors, const std::string& whose) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  names = names_for(names, choose("names", whose, name_tables()));
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].first = std::move(names[i]);
  return tensors;
}

std::vector<std::string> name_table_names() {
  std::vector<std::string> keys;
  for (const NameTable& table : name_tables()) keys.push_back(table.name);
  return keys;
}

void write_weights(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  check_weights_ending(path);
  if (path.extension() == safetensors_ending) return write_tensors(path, tensors, metadata);
  const std::string pickle = format_pickle(described(tensors));
  write_file(path, [&](std::ostream& out) {
    write_archive(out, pickle, tensors.size(), [&](std::size_t i) { return tensors[i].second; });
  });
}

}  // namespace trestle::checkpoint
