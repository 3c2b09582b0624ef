#include "trestle/checkpoint/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/box_read.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/files/weight_names.h"
#include "trestle/checkpoint/open_checkpoint.h"
#include "trestle/checkpoint/share_pages.h"
#include "trestle/checkpoint/weights_file.h"
#include "trestle/nn/layers.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

std::string quoted(std::string_view name, at::IntArrayRef shape) {
  return text("'", shown(name), "' ", shape);
}

// The tensors to read and their destinations, and a report on the rest.
struct Matching {
  std::vector<WeightsFile::Read> reads;
  LoadReport report;
};

bool converts(at::ScalarType from, at::ScalarType to) {
  return from == to || (at::isFloatingType(from) && at::isFloatingType(to));
}

Matching match(const NamedTensors& into, const WeightsFile& file, const LoadOptions& options,
               const std::string& path) {
  std::vector<std::string> in_file, wanted;
  for (const StoredTensor& tensor : file.tensors()) in_file.push_back(tensor.name);
  for (const auto& [name, tensor] : into) wanted.push_back(name);
  Naming naming;
  if (options.rename) {
    naming.title = "the caller's";
    for (const std::string& name : in_file) naming.names.push_back(options.rename(name));
  } else {
    naming = names_of(in_file, wanted);
  }

  Matching out;
  LoadReport& report = out.report;
  report.names = naming.title;
  std::unordered_map<std::string, std::size_t> numbers;  // of the file's tensors
  for (std::size_t i = 0; i < naming.names.size(); ++i) {
    if (naming.names[i].empty()) continue;
    const auto [before, is_new] = numbers.try_emplace(naming.names[i], i);
    if (!is_new)
      throw FormatError(text("both '", shown(in_file[before->second]), "' and '", shown(in_file[i]),
                             "' have the name '", shown(naming.names[i]), "'"),
                        {.file = path});
  }
  std::unordered_set<std::string> used;
  for (std::size_t i = 0; i < into.size(); ++i) {
    const auto& [name, tensor] = into[i];
    const auto box = options.boxes.find(i);
    const bool is_box = box != options.boxes.end();
    const at::IntArrayRef shape = is_box ? at::IntArrayRef(box->second.whole) : tensor.sizes();
    const auto found = numbers.find(name);
    if (found == numbers.end() || (used.contains(name) && !is_box)) {
      if (!name.ends_with("num_batches_tracked")) report.missing.push_back(quoted(name, shape));
      continue;
    }
    const StoredTensor& stored = file.tensors()[found->second];
    const bool is_first = used.insert(name).second;
    if (shape != at::IntArrayRef(stored.shape) || !converts(stored.type, tensor.scalar_type())) {
      if (is_first)
        report.mismatched.push_back(text("'", shown(stored.name), "' is ",
                                         c10::toString(stored.type), " ",
                                         at::IntArrayRef(stored.shape), ", but the model's ",
                                         stored.name == name ? "" : text("'", name, "' "), "is ",
                                         c10::toString(tensor.scalar_type()), " ", shape));
    } else {
      if (is_first) ++report.loaded;
      report.converted += is_first && stored.type != tensor.scalar_type() ? 1 : 0;
      out.reads.push_back(
          {found->second, tensor, is_box ? box->second.offset : std::vector<std::int64_t>()});
    }
  }
  for (std::size_t i = 0; i < naming.names.size(); ++i)
    if (numbers.contains(naming.names[i]) && !used.contains(naming.names[i]))
      report.unexpected.push_back(quoted(in_file[i], file.tensors()[i].shape));
  for (const std::string& name : file.others())
    report.unexpected.push_back(text("'", shown(name), "' (not a tensor)"));
  return out;
}

void add_list(std::string& out, const char* title, const std::vector<std::string>& items) {
  constexpr std::size_t most_shown = 20;
  if (items.empty()) return;
  out += text("\n  ", title, " (", items.size(), "): ");
  out += join(std::vector<std::string>(
                  items.begin(),
                  items.begin() + static_cast<std::ptrdiff_t>(std::min(items.size(), most_shown))),
              ", ");
  if (items.size() > most_shown) out += ", ...";
}

std::string differences(const LoadReport& report) {
  std::string out;
  add_list(out, "missing in the file", report.missing);
  add_list(out, "unexpected, not in the model", report.unexpected);
  add_list(out, "of another shape or type", report.mismatched);
  return out;
}

constexpr std::uint64_t most_at_once = 64 << 20;
constexpr std::uint64_t most_staged = 16 << 20;

std::uint64_t bytes_of(const WeightsFile& file, const std::vector<WeightsFile::Read>& reads) {
  std::uint64_t bytes = 0;
  for (const WeightsFile::Read& one : reads)
    bytes += static_cast<std::uint64_t>(one.into.numel()) *
             c10::elementSize(file.tensors()[one.tensor].type);
  return bytes;
}

}  // namespace

bool has_stored_layout(const at::Tensor& tensor, const StoredTensor& stored) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_neg() &&
         tensor.scalar_type() == stored.type;
}

bool WeightsFile::fills(const Read& read) const {
  return read.offset.empty() && has_stored_layout(read.into, tensors_[read.tensor]);
}

void WeightsFile::read(const std::vector<Read>& reads) const {
  const at::NoGradGuard no_grad;
  if (!can_fill() || bytes_of(*this, reads) <= most_at_once) return read_staged(reads);
  std::vector<Read> direct, group;
  for (const Read& one : reads) {
    if (fills(one)) {
      direct.push_back({one.tensor, one.into.detach()});
      continue;
    }
    group.push_back(one);
    if (bytes_of(*this, group) <= most_staged || group.size() == 1) continue;
    group.pop_back();
    read_staged(std::exchange(group, {one}));
  }
  read_staged(group);
  fill(direct);
  for (const Read& one : direct) one.into.unsafeGetTensorImpl()->bump_version();
}

// A value is freed as soon as it is copied.
void WeightsFile::read_staged(const std::vector<Read>& reads) const {
  std::vector<std::size_t> wanted;
  for (const Read& one : reads)
    if (one.offset.empty()) wanted.push_back(one.tensor);
  std::vector<at::Tensor> whole = load(wanted), values;
  std::size_t next = 0;
  for (const Read& one : reads)
    values.push_back(one.offset.empty() ? std::exchange(whole[next++], {}) : load_box(one));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    at::Tensor target = reads[i].into.detach();
    target.copy_(std::exchange(values[i], {}));
  }
}

at::Tensor WeightsFile::load_box(const Read& read) const {
  return box_view(load({read.tensor})[0], Sizes(read.offset.size(), 0),
                  {read.offset, read.into.sizes().vec()});
}

std::vector<at::Tensor> WeightsFile::load_by_fill(const std::vector<std::size_t>& wanted) const {
  std::vector<at::Tensor> all;
  std::vector<Read> reads;
  for (const std::size_t number : wanted) {
    all.push_back(at::empty(tensors_[number].shape, at::dtype(tensors_[number].type)));
    reads.push_back({number, all.back()});
  }
  fill(reads);
  return all;
}

NamedTensors WeightsFile::read() const {
  std::vector<std::size_t> every(tensors_.size());
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = i;
  std::vector<at::Tensor> values = load(every);
  NamedTensors all;
  for (std::size_t i = 0; i < every.size(); ++i)
    all.emplace_back(tensors_[i].name, std::move(values[i]));
  return all;
}

std::unique_ptr<WeightsFile> open_weights(const fs::path& path) {
  std::error_code none;
  if (is_checkpoint(path)) return open_checkpoint_weights(path);
  if (path.filename() == hugging_face_index_name && fs::is_regular_file(path, none)) {
    const fs::path single = path.parent_path() / hugging_face_single_name;
    if (fs::exists(single, none))
      throw UsageError(
          "the folder of this index also has model.safetensors",
          {.file = path.string(), .hint = "Move the file away whose weights are not wanted."});
    return open_checkpoint_weights(path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  if (!fs::exists(path, none))
    throw FileError("there is no such weights file", {.file = path.string()});
  if (const fs::path pickled = path / "pytorch_model.bin"; fs::is_regular_file(pickled, none))
    return open_weights(pickled);
  if (!fs::is_regular_file(path, none))
    throw FileError(fs::is_directory(path, none) ? "is a folder without a checkpoint"
                                                 : "is a device or a pipe, not a weights file",
                    {.file = path.string()});
  std::array<char, 512> first{};
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) throw FileError("cannot be opened for reading", {.file = path.string()});
  in.read(first.data(), first.size());
  const std::string_view begin(first.data(), static_cast<std::size_t>(in.gcount()));
  if (begin.empty()) throw FormatError("the file of weights is empty", {.file = path.string()});
  // As the length of a safetensors header, these bytes would be longer than any.
  if (begin.starts_with("GGUF")) return open_gguf(path);
  // A safetensors file begins with a length of 8 arbitrary bytes, and then its header.
  if (begin.size() > 8 && begin[8] == '{') return open_safetensors(path);
  if (begin.starts_with("PK\x03\x04")) return open_torch_archive(path);
  // A plain pickle, or an older tar archive.
  constexpr std::size_t tar_magic = 257;
  if (begin.starts_with('\x80') ||
      (begin.size() > tar_magic && begin.substr(tar_magic).starts_with("ustar")))
    throw FormatError(
        "is in the old format of torch.save (before PyTorch 1.6), which is not supported",
        {.file = path.string(),
         .hint = "In Python: torch.save(torch.load(file, weights_only=True), other_file)."});
  return open_safetensors(path);
}

std::vector<StoredTensor> list_weights(const fs::path& path) {
  return open_weights(path)->tensors();
}

TensorFile read_weights(const fs::path& path) {
  const auto file = open_weights(path);
  return {file->read(), file->metadata()};
}

LoadReport load_weights(const NamedTensors& into, const fs::path& path,
                        const LoadOptions& options) {
  const auto file = open_weights(path);
  const Matching matching = match(into, *file, options, path.string());
  const LoadReport& report = matching.report;
  if (report.loaded == 0 || (options.strict && !report.whole())) {
    std::string hint;
    if (report.loaded > 0) hint = options.mismatch_hint;
    throw FormatError(
        text("these weights do not match the model; ", report.loaded, " of its ", into.size(),
             " tensors match, under ", report.names, " names:", differences(report)),
        {.file = path.string(), .hint = std::move(hint)});
  }
  if (options.memory == LoadMemory::Mapped) {
    file->map();
    file->read(share_pages(*file, matching.reads));
  } else {
    file->read(matching.reads);
  }
  return report;
}

LoadReport load_weights(const nn::Layers& model, const fs::path& path, const LoadOptions& options) {
  NamedTensors all = model.named_parameters();
  for (auto& buffer : model.named_buffers()) all.push_back(std::move(buffer));
  return load_weights(all, path, options);
}

std::string describe(const LoadReport& report) {
  std::string out = text(report.loaded, " tensors, under ", report.names, " names");
  if (report.converted > 0) out += text(", ", report.converted, " of them of another type");
  return out + differences(report);
}

}  // namespace trestle::checkpoint
