// A folder of torch.distributed.checkpoint (DCP): a pickle of places, and files of archives end to
// end, one for each shard of a tensor.
#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/foreign/foreign_index.h"
#include "trestle/checkpoint/files/pickle/tensor_archive.h"
#include "trestle/checkpoint/files/train_state.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;
using Kind = PickledValue::Kind;

constexpr std::array<std::string_view, 26> dcp_classes = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "torch.float64",
    "torch.float32",
    "torch.float16",
    "torch.bfloat16",
    "torch.int64",
    "torch.int32",
    "torch.int16",
    "torch.int8",
    "torch.uint8",
    "torch.bool",
    "torch.complex64",
    "torch.complex128",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
};

// Fields of optimizers: a tensor "optim.state.<parameter>.<field>" is one's state.
constexpr std::array<std::string_view, 7> state_fields = {
    "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"};

struct Chunk {
  std::string file;
  std::uint64_t begin = 0, bytes = 0;
  Box box;
};

struct DcpTensor {
  std::string name;  // of the whole state: "model.fc.weight"
  std::string group = "weights", own_name;
  Sizes shape;
  std::vector<Chunk> chunks;
};

// The pickle of places, as plain values.
class DcpMetadata {
 public:
  explicit DcpMetadata(const fs::path& path) : path_(path.string()) {
    const FileBytes file(path);
    if (file.size() > longest_pickle)
      fail(text("it has ", file.size(), " bytes, more than the limit of ", longest_pickle));
    bytes_ = file.read(0, file.size());
    pickle_ = parse_pickle(bytes_, path_, {.classes = dcp_classes, .newest_protocol = 5});
  }

  std::vector<DcpTensor> read() {
    const PickledValue& root = state_of(pickle_.root, "Metadata");
    std::vector<DcpTensor> tensors;
    for (const auto& [name, value] : dict(at(root, "state_dict_metadata"))) {
      if (name.kind != Kind::String) fail("the name of a tensor is not a string");
      if (!is(value, "TensorStorageMetadata")) continue;  // a Python object
      places_[std::string(name.text)] = tensors.size();
      tensors.push_back({std::string(name.text),
                         "weights",
                         std::string(name.text),
                         shape(at(state_of(value, "TensorStorageMetadata"), "size")),
                         {}});
      add_boxes(tensors.back(), at(state_of(value, "TensorStorageMetadata"), "chunks"));
    }
    for (const auto& [index, info] : dict(at(root, "storage_data")))
      add_place(tensors, index, info);
    for (const DcpTensor& tensor : tensors)
      for (const Chunk& chunk : tensor.chunks)
        if (chunk.file.empty()) fail(text("tensor '", shown(tensor.name), "' has no file"));
    set_names(tensors, find(root, "planner_data"));
    return tensors;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(text("cannot trust this checkpoint: ", what), {.file = path_});
  }

  bool is(const PickledValue& value, std::string_view type) const {
    return value.kind == Kind::Object &&
           pickle_.objects[value.place()].type.ends_with(text(".", type));
  }
  const PickledValue& state_of(const PickledValue& value, std::string_view type) const {
    if (!is(value, type)) fail(text("a value is not of the class ", type));
    return pickle_.objects[value.place()].state;
  }
  const Pickle::Dict& dict(const PickledValue& value) const {
    if (value.kind != Kind::Dict) fail("a value is not a dict");
    return pickle_.dicts[value.place()];
  }
  const std::vector<PickledValue>& sequence(const PickledValue& value) const {
    if (value.kind != Kind::Sequence) fail("a value is not a list");
    return pickle_.sequences[value.place()];
  }
  const PickledValue* find(const PickledValue& in, std::string_view key) const {
    for (const auto& [name, value] : dict(in))
      if (name.kind == Kind::String && name.text == key) return &value;
    return nullptr;
  }
  const PickledValue& at(const PickledValue& in, std::string_view key) const {
    const PickledValue* const found = find(in, key);
    if (!found) fail(text("a value has no '", key, "'"));
    return *found;
  }
  Sizes shape(const PickledValue& value) const {
    Sizes sizes;
    std::int64_t bytes = 8;
    for (const PickledValue& size : sequence(value)) {
      if (size.kind != Kind::Integer || size.number < 0) fail("a shape is not a list of sizes");
      sizes.push_back(size.number);
      if (size.number > 0 && __builtin_mul_overflow(bytes, size.number, &bytes))
        fail("a tensor is larger than any memory");
    }
    return sizes;
  }
  std::uint64_t count(const PickledValue& value) const {
    if (value.kind != Kind::Integer || value.number < 0) fail("a place is not a number");
    return static_cast<std::uint64_t>(value.number);
  }

  void add_boxes(DcpTensor& tensor, const PickledValue& chunks) const {
    for (const PickledValue& chunk : sequence(chunks)) {
      const PickledValue& state = state_of(chunk, "ChunkStorageMetadata");
      tensor.chunks.push_back({{}, 0, 0, {shape(at(state, "offsets")), shape(at(state, "sizes"))}});
      if (!lies_in(tensor.chunks.back().box, tensor.shape))
        fail(text("tensor '", shown(tensor.name), "' of shape [", join(tensor.shape, ", "),
                  "] has a box that exceeds it"));
    }
  }

  void add_place(std::vector<DcpTensor>& tensors, const PickledValue& index,
                 const PickledValue& info) const {
    const PickledValue& key = state_of(index, "MetadataIndex");
    const PickledValue& name = at(key, "fqn");
    const auto found = places_.find(std::string(name.text));
    if (name.kind != Kind::String || found == places_.end()) return;
    const Sizes offset = shape(at(key, "offset"));
    const PickledValue& place = state_of(info, "_StorageInfo");
    if (const PickledValue* const changed = find(place, "transform_descriptors");
        changed && changed->kind != Kind::None)
      fail(text("tensor '", shown(name.text), "' is compressed"));
    const PickledValue& file = at(place, "relative_path");
    if (file.kind != Kind::String || !is_plain_file_name(file.text))
      fail(text("the file of tensor '", shown(name.text), "' is not the name of a file beside it"));
    for (Chunk& chunk : tensors[found->second].chunks)
      if (chunk.box.offset == offset) {
        if (!chunk.file.empty()) continue;
        chunk.file = std::string(file.text);
        chunk.begin = count(at(place, "offset"));
        chunk.bytes = count(at(place, "length"));
        return;
      }
    fail(text("tensor '", shown(name.text), "' has no box at [", join(offset, ", "), "]"));
  }

  // The keys of nested dicts that lead to a tensor: {"model": {"fc.weight": w}}.
  std::map<std::string, std::vector<std::string>> read_paths(const PickledValue* planner) const {
    std::map<std::string, std::vector<std::string>> paths;
    if (!planner || planner->kind != Kind::Dict) return paths;
    for (const auto& [name, path] : dict(*planner)) {
      if (name.kind != Kind::String || path.kind != Kind::Sequence) continue;
      auto& words = paths[std::string(name.text)];
      for (const PickledValue& word : sequence(path))
        words.push_back(word.kind == Kind::String ? std::string(word.text) : text(word.number));
    }
    return paths;
  }

  void set_names(std::vector<DcpTensor>& tensors, const PickledValue* planner) const {
    const auto paths = read_paths(planner);
    std::set<std::string> tops;  // keys of the dicts with the weights
    bool nested = true;
    for (DcpTensor& tensor : tensors) {
      const auto found = paths.find(tensor.name);
      std::vector<std::string> path = {tensor.name};
      if (found != paths.end() && !found->second.empty()) path = found->second;
      const std::size_t size = path.size();
      const bool is_state =
          size >= 4 && path[size - 3] == "state" &&
          std::find(state_fields.begin(), state_fields.end(), path[size - 1]) != state_fields.end();
      if (is_state) {
        tensor.group = "optimizer";
        tensor.own_name = text(path[size - 2], ".", path[size - 1]);
        continue;
      }
      tops.insert(path[0]);
      nested = nested && size > 1;
    }
    if (!nested || tops.size() != 1) return;
    for (DcpTensor& tensor : tensors)
      if (tensor.group == "weights") {
        const auto& path = paths.at(tensor.name);
        tensor.own_name = join(std::vector<std::string>(path.begin() + 1, path.end()), ".");
      }
  }

  std::string path_, bytes_;
  Pickle pickle_;
  std::map<std::string, std::size_t> places_;  // of each tensor, by name
};

class DcpReader {
 public:
  explicit DcpReader(const fs::path& folder)
      : folder_(folder), index_(FolderKind::Dcp, folder.string()) {}

  CheckpointIndex read() {
    for (const DcpTensor& tensor : DcpMetadata(folder_ / dcp_metadata_name).read())
      for (const Chunk& chunk : tensor.chunks) add(tensor, chunk);
    return index_.finish(format_state({}));
  }

 private:
  // Each chunk is a file of torch.save with one tensor.
  void add(const DcpTensor& tensor, const Chunk& chunk) {
    const FileBytes& file = open(chunk.file);
    const std::string what = text("tensor '", shown(tensor.name), "'");
    if (chunk.begin > file.size() || chunk.bytes > file.size() - chunk.begin)
      throw FormatError(text(what, " is at bytes ", chunk.begin, " to ", chunk.begin + chunk.bytes,
                             " of this file, which has only ", file.size(),
                             ": it was cut short or belongs to another save"),
                        {.file = file.name()});
    const TensorArchive archive(file, chunk.begin, chunk.bytes);
    const PickledValue& root = archive.pickle().root;
    if (root.kind != Kind::Tensor) archive.fail(text(what, " is not a tensor"));
    const PickledTensor& stored = archive.pickle().tensors[root.place()];
    if (stored.shape != chunk.box.sizes)
      archive.fail(text(what, " has shape [", join(stored.shape, ", "), "], but ",
                        dcp_metadata_name, " lists [", join(chunk.box.sizes, ", "), "]"));
    if (tensor.group == "optimizer" && tensor.shape.empty() && tensor.own_name.ends_with(".step"))
      return index_.add_count("optimizer", tensor.own_name, archive.number(root, what));
    index_.add_box(tensor.group, tensor.own_name, tensor.shape, chunk.box,
                   {chunk.file, archive.elements(stored, what)});
  }

  const FileBytes& open(const std::string& name) {
    auto& file = files_[name];
    if (!file) {
      std::error_code none;
      if (!fs::is_regular_file(folder_ / name, none))
        throw FormatError("this file of the checkpoint is missing",
                          {.file = (folder_ / name).string()});
      file = std::make_unique<FileBytes>(folder_ / name);
    }
    return *file;
  }

  fs::path folder_;
  ForeignIndex index_;
  std::map<std::string, std::unique_ptr<FileBytes>> files_;
};

}  // namespace

CheckpointIndex read_dcp_index(const fs::path& folder) { return DcpReader(folder).read(); }

}  // namespace trestle::checkpoint
