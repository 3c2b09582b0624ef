#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/checkpoint/files/mapped_file.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"

// An open weights file: its list of tensors is checked, but no tensor has been read. Internal to
// trestle/checkpoint.
namespace trestle::checkpoint {

class WeightsFile {
 public:
  WeightsFile() = default;
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  virtual ~WeightsFile() = default;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Names of entries that are not tensors.
  const std::vector<std::string>& others() const { return others_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // A tensor of the same shape as tensor number `tensor` of the file, on any device, with any
  // strides, and of any floating type. With an offset: of the shape of the box that begins there.
  struct Read {
    std::size_t tensor = 0;
    at::Tensor into;
    std::vector<std::int64_t> offset = {};
  };
  // Files with checksums, and reads of up to 64 MiB: reads all, and copies then, so an error
  // changes nothing. For more, only tensors that need another type, device or order are read to
  // memory of their own, one tensor or 16 MiB at a time.
  void read(const std::vector<Read>& reads) const;
  // Reads all into new CPU tensors.
  NamedTensors read() const;

  // Maps the file, if its tensors are stored as they are in memory and the system can do so.
  virtual void map() {}
  // The bytes of a tensor in a mapped file; `file` is null for another file.
  struct Mapped {
    std::shared_ptr<MappedFile> file;
    std::uint64_t begin = 0;
  };
  virtual Mapped mapped(std::size_t /*tensor*/) const { return {}; }

 protected:
  // Reads these tensors into new CPU tensors of the stored types. They may share memory.
  virtual std::vector<at::Tensor> load(const std::vector<std::size_t>& tensors) const = 0;
  // The same for the box of a tensor that `read` names. Files that are read by ranges of bytes read
  // those of the box alone.
  virtual at::Tensor load_box(const Read& read) const;
  // Whether the file's content was checked as a whole when it was opened. Then fill() reads tensors
  // directly into those that fills() names, and into contiguous CPU tensors of the stored types.
  virtual bool can_fill() const { return false; }
  virtual bool fills(const Read& read) const;
  virtual void fill(const std::vector<Read>& /*reads*/) const {}
  // load() by fill().
  std::vector<at::Tensor> load_by_fill(const std::vector<std::size_t>& tensors) const;

  std::vector<StoredTensor> tensors_;
  std::vector<std::string> others_;
  std::map<std::string, std::string> metadata_;

 private:
  void read_staged(const std::vector<Read>& reads) const;
};

// Whether the tensor's bytes in memory are those of the stored one: on the CPU, contiguous and of
// its type.
bool has_stored_layout(const at::Tensor& tensor, const StoredTensor& stored);

std::unique_ptr<WeightsFile> open_safetensors(const std::filesystem::path& path);
std::unique_ptr<WeightsFile> open_torch_archive(const std::filesystem::path& path);
std::unique_ptr<WeightsFile> open_gguf(const std::filesystem::path& path);
// Opens any kind, recognized by its first bytes, and the folders that weights.h names.
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& path);

}  // namespace trestle::checkpoint
