#include <unordered_map>
#include <utility>

#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/box_read.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/safetensors_file.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr const char* damaged =
    "It was damaged, or it belongs to another save: all files of a checkpoint belong together.";

// Boxes that are tensors of a safetensors file.
class SafetensorsSource : public BoxSource {
 public:
  explicit SafetensorsSource(const fs::path& path) : path_(path.string()), file_(path) {
    for (std::size_t i = 0; i < file_.tensors().size(); ++i) numbers_[file_.tensors()[i].name] = i;
  }

  void check(const BoxRead& request) const override { number_of(request); }

  void read(const std::vector<Elements>& wanted) const override {
    std::vector<SafetensorsFile::Elements> all;
    for (const Elements& one : wanted)
      all.push_back({number_of(*one.request), one.first, one.into});
    file_.read_elements(all);
  }

 private:
  std::size_t number_of(const BoxRead& request) const {
    const auto found = numbers_.find(request.key());
    if (found == numbers_.end())
      throw FormatError(text("has no '", shown(request.key()), "', but the index lists it"),
                        {.file = path_});
    const StoredTensor& stored = file_.tensors()[found->second];
    if (stored.shape != request.stored_box().sizes ||
        stored.type != scalar_type(request.tensor->dtype))
      throw FormatError(
          text("has '", shown(stored.name), "' as ", c10::toString(stored.type), " ",
               at::IntArrayRef(stored.shape), ", but the index has ", request.tensor->dtype, " [",
               join(request.stored_box().sizes, ", "), "]"),
          {.file = path_, .hint = damaged});
    return found->second;
  }

  std::string path_;
  SafetensorsFile file_;
  std::unordered_map<std::string, std::size_t> numbers_;
};

// Boxes that are ranges of another program's file, or of computed bytes.
class RecordSource : public BoxSource {
 public:
  RecordSource(const fs::path& folder, const std::string& file, const CheckpointIndex& index,
               VerifiedRecords& verified)
      : index_(index), verified_(verified) {
    if (!file.empty()) file_.emplace(folder / file);
  }

  void check(const BoxRead& request) const override {
    const std::size_t number = request.source().place->record;
    const StoredRecord& record = index_.records[number];
    if (record.file.empty()) return;
    const std::lock_guard guard(verified_.lock);
    if (verified_.records.contains(number)) return;
    if (file_->crc32(record.bytes.begin, record.bytes.bytes) != record.bytes.crc)
      throw FormatError(text("'", shown(request.tensor->name), "' differs from the saved one: the ",
                             "checksum of its storage is another"),
                        {.file = file_->name(), .hint = damaged});
    verified_.records.insert(number);
  }

  void read(const std::vector<Elements>& wanted) const override {
    for (const Elements& one : wanted) {
      const RecordPlace place = *one.request->source().place;
      const StoredRecord& record = index_.records[place.record];
      const std::uint64_t begin =
          place.begin + static_cast<std::uint64_t>(one.first) * one.into.element_size();
      if (record.file.empty())
        record.content.copy(static_cast<char*>(one.into.mutable_data_ptr()), one.into.nbytes(),
                            begin);
      else
        file_->read(record.bytes.begin + begin, one.into.mutable_data_ptr(), one.into.nbytes());
    }
  }

 private:
  const CheckpointIndex& index_;
  VerifiedRecords& verified_;
  std::optional<FileBytes> file_;
};

}  // namespace

at::Tensor box_view(at::Tensor tensor, const Sizes& origin, const Box& box) {
  for (std::size_t d = 0; d < box.sizes.size(); ++d)
    tensor = tensor.narrow(static_cast<std::int64_t>(d), box.offset[d] - origin[d], box.sizes[d]);
  return tensor;
}

std::unique_ptr<BoxSource> open_box_source(const fs::path& folder, const std::string& file,
                                           const CheckpointIndex& index,
                                           VerifiedRecords& verified) {
  const bool has_records = index.kind == FolderKind::Deepspeed || index.kind == FolderKind::Dcp;
  if (has_records) return std::make_unique<RecordSource>(folder, file, index, verified);
  return std::make_unique<SafetensorsSource>(folder / file);
}

}  // namespace trestle::checkpoint
