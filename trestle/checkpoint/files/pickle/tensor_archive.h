#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/files/pickle/zip_records.h"

// An archive of torch.save in a range of a file: its pickle is parsed, and the bytes of its tensors
// are found but not read. Torch-free. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// Contiguous elements in a file.
struct StoredElements {
  ZipRecord record;         // the storage, whose checksum covers the elements
  std::uint64_t begin = 0;  // bytes from the begin of the record
  std::string dtype;        // "F32", ...
};

class TensorArchive {
 public:
  // The archive is bytes [begin, begin + bytes) of the file, which must outlive it. Throws
  // FormatError for anything but an archive of tensors, plain containers and the listed classes.
  TensorArchive(const FileBytes& file, std::uint64_t begin, std::uint64_t bytes,
                const PickleOptions& options = {});
  explicit TensorArchive(const FileBytes& file, const PickleOptions& options = {})
      : TensorArchive(file, 0, file.size(), options) {}
  TensorArchive(const TensorArchive&) = delete;
  TensorArchive& operator=(const TensorArchive&) = delete;

  const std::string& name() const { return file_.name(); }
  const Pickle& pickle() const { return pickle_; }
  // A value that must be a dict, a list and so on; `what` names it in the FormatError.
  const Pickle::Dict& dict(const PickledValue& value, const std::string& what) const;
  const std::vector<PickledValue>& sequence(const PickledValue& value,
                                            const std::string& what) const;
  // An entry of a dict; null if there is none.
  const PickledValue* find(const PickledValue& dict, std::string_view key) const;
  // FormatError if there is none.
  const PickledValue& at(const PickledValue& dict, std::string_view key) const;
  std::int64_t count(const PickledValue& value, const std::string& what) const;  // not negative
  std::vector<std::int64_t> shape(const PickledValue& value, const std::string& what) const;

  // The elements of a tensor in row-major order. Throws FormatError for a tensor with gaps or
  // another order, or a storage that is larger than its record.
  StoredElements elements(const PickledTensor& tensor, const std::string& what) const;
  // The value of a number or of a tensor of one float or integer.
  double number(const PickledValue& value, const std::string& what) const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  const FileBytes& file_;
  std::map<std::string, ZipRecord> records_;
  std::string folder_;
  std::string bytes_;  // the strings of pickle_ refer to these
  Pickle pickle_;
};

}  // namespace trestle::checkpoint
