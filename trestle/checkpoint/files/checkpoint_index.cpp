#include "trestle/checkpoint/files/checkpoint_index.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/files/strict_json.h"

namespace trestle::checkpoint {

namespace {

using nlohmann::json;

constexpr const char* format_name = "trestle checkpoint";
constexpr std::string_view part_ending = ".safetensors";
constexpr std::size_t most_dimensions = 64;
constexpr const char* what = "the index of this checkpoint";

std::string in_words(const json& value) {
  return shown(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

class IndexReader {
 public:
  IndexReader(const std::string& file, Cover cover) : file_(file), cover_(cover) {}

  CheckpointIndex read(std::string_view bytes) {
    const json in = parse_object(bytes, what, file_);
    check_version(in);
    CheckpointIndex index;
    const json& state = member(in, "state", what);
    if (!state.is_object()) fail("its state is not an object");
    index.state = state.dump(-1, ' ', true, json::error_handler_t::replace);
    for (const auto& [name, about] : object(in, "files").items()) {
      if (!is_shard_file_name(name)) fail(text("'", shown(name), "' is not a valid file name"));
      const json& size = member(about, "bytes", name);
      if (!is_count(size)) fail(text("'", name, "' has ", in_words(size), " bytes"));
      index.files[name] = size.get<std::uint64_t>();
    }
    for (const auto& [group, tensors] : object(in, "tensors").items())
      index.groups[group] = read_group(group, tensors, index);
    return index;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw FormatError(text(what, " cannot be trusted: ", why), {.file = file_});
  }

  const json& member(const json& in, const char* key, const std::string& where) const {
    if (!in.is_object() || !in.contains(key)) fail(text(shown(where), " has no '", key, "'"));
    return in[key];
  }

  const json& object(const json& in, const char* key) const {
    const json& found = member(in, key, what);
    if (!found.is_object()) fail(text("'", key, "' is not an object"));
    return found;
  }

  void check_version(const json& in) const {
    const json& format = member(in, "format", what);
    const json& version = member(in, "version", what);
    if (format != format_name)
      throw FormatError(text("this is not a checkpoint: its format is ", in_words(format)),
                        {.file = file_});
    if (version != checkpoint_version)
      throw FormatError(
          text("version ", in_words(version), " of a checkpoint is unknown; this program writes ",
               checkpoint_version),
          {.file = file_, .hint = "Use the version of trestle that wrote it."});
  }

  Sizes sizes(const json& in, const char* key, const std::string& where) const {
    const json& list = member(in, key, where);
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_count))
      fail(text(where, " has a ", key, " that is not a list of sizes"));
    if (list.size() > most_dimensions)
      fail(text(where, " has ", list.size(), " dimensions, more than a tensor can have"));
    Sizes out;
    for (const json& size : list)
      out.push_back(static_cast<std::int64_t>(size.get<std::uint64_t>()));
    return out;
  }

  std::string word(const json& in, const char* key, const std::string& where) const {
    const json& value = member(in, key, where);
    if (!value.is_string()) fail(text(where, " has a ", key, " that is not a string"));
    return value.get<std::string>();
  }

  std::vector<IndexedTensor> read_group(const std::string& group, const json& tensors,
                                        const CheckpointIndex& index) {
    if (!tensors.is_array()) fail(text("'", shown(group), "' is not a list of tensors"));
    std::vector<IndexedTensor> out;
    std::set<std::string> names;
    for (const json& one : tensors) {
      const std::string name = word(one, "name", "a tensor");
      if (!names.insert(name).second)
        fail(text("'", shown(group), "' has two tensors '", shown(name), "'"));
      out.push_back(read_tensor(group, one, index));
    }
    return out;
  }

  IndexedTensor read_tensor(const std::string& group, const json& in,
                            const CheckpointIndex& index) {
    IndexedTensor tensor{word(in, "name", "a tensor"), {}, {}, {}};
    const std::string where = text("tensor '", shown(tensor.name), "'");
    tensor.dtype = word(in, "dtype", where);
    if (dtype_bytes(tensor.dtype) == 0)
      fail(text(where, " has the unknown type '", shown(tensor.dtype), "'"));
    tensor.shape = sizes(in, "shape", where);
    check_size(tensor, where);
    const json& boxes = member(in, "boxes", where);
    if (!boxes.is_array()) fail(text(where, " has boxes that are not a list"));
    for (const json& box : boxes) {
      tensor.boxes.push_back(read_box(group, box, tensor, where, index));
      const StoredBox& stored = tensor.boxes.back();
      if (!keys_.emplace(stored.file, tensor.key_of(stored)).second)
        fail(text(where, " has a box in '", stored.file, "' with the name '",
                  shown(tensor.key_of(stored)), "', which another box has already"));
    }
    if (cover_ == Cover::Whole) check_cover(tensor, where);
    return tensor;
  }

  void check_size(const IndexedTensor& tensor, const std::string& where) const {
    auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
    for (const std::int64_t size : tensor.shape)
      if (size > 0 && __builtin_mul_overflow(bytes, size, &bytes))
        fail(text(where, " is larger than any memory"));
  }

  StoredBox read_box(const std::string& group, const json& in, const IndexedTensor& tensor,
                     const std::string& where, const CheckpointIndex& index) {
    StoredBox stored{word(in, "file", where),
                     {sizes(in, "offset", where), sizes(in, "sizes", where)}};
    if (in.contains("hash")) stored.hash = word(in, "hash", where);
    if (in.contains("key")) stored.key = word(in, "key", where);
    if (!lies_in(stored.box, tensor.shape))
      fail(text(where, " of shape [", join(tensor.shape, ", "), "] has a box at [",
                join(stored.box.offset, ", "), "] of size [", join(stored.box.sizes, ", "),
                "], which exceeds it"));
    const auto file = index.files.find(stored.file);
    if (file == index.files.end())
      fail(text(where, " is in '", shown(stored.file), "', which is not listed among the files"));
    const auto bytes = static_cast<std::uint64_t>(elements_of(stored.box.sizes)) *
                       static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
    if (bytes > file->second)
      fail(text(where, " has a box of ", bytes, " bytes in '", stored.file, "', which has only ",
                file->second));
    const auto [owner, is_new] = groups_.try_emplace(stored.file, group);
    if (!is_new && owner->second != group)
      fail(text("'", stored.file, "' belongs to both '", shown(owner->second), "' and '",
                shown(group), "'"));
    return stored;
  }

  void check_cover(const IndexedTensor& tensor, const std::string& where) const {
    const auto fault = find_cover_fault(tensor.shape, tensor.plain_boxes());
    if (!fault) return;
    if (fault->kind == CoverFault::Kind::Ragged) fail(text(where, " has too many irregular boxes"));
    if (fault->kind == CoverFault::Kind::Hole)
      fail(text("no file contains ", to_string(fault->box), " of ", where));
    fail(text(to_string(fault->box), " of ", where, " is in both '",
              tensor.boxes[fault->first].file, "' and '", tensor.boxes[fault->second].file, "'"));
  }

  const std::string& file_;
  Cover cover_;
  std::map<std::string, std::string> groups_;           // group of each file
  std::set<std::pair<std::string, std::string>> keys_;  // file and name of each box
};

std::string in_json(const Sizes& sizes) { return text("[", join(sizes, ", "), "]"); }

std::string in_json(const IndexedTensor& tensor) {
  std::vector<std::string> boxes;
  const auto member = [](const char* key, const std::string& value) {
    return value.empty() ? std::string() : text(", \"", key, "\": ", json(value).dump());
  };
  for (const StoredBox& stored : tensor.boxes)
    boxes.push_back(text("{\"file\": ", json(stored.file).dump(), ", \"offset\": ",
                         in_json(stored.box.offset), ", \"sizes\": ", in_json(stored.box.sizes),
                         member("key", stored.key), member("hash", stored.hash), "}"));
  return text("{\"name\": ", json(tensor.name).dump(), ", \"dtype\": ", json(tensor.dtype).dump(),
              ", \"shape\": ", in_json(tensor.shape), ", \"boxes\": [", join(boxes, ", "), "]}");
}

}  // namespace

std::vector<Box> IndexedTensor::plain_boxes() const {
  std::vector<Box> all;
  for (const StoredBox& stored : boxes) all.push_back(stored.box);
  return all;
}

bool is_shard_file_name(std::string_view name) {
  constexpr std::size_t longest = 255;
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return plain && name.size() > part_ending.size() && name.size() <= longest && name[0] != '.' &&
         name.ends_with(part_ending);
}

std::string shard_file_name(const std::string& group, int rank, int ranks) {
  return text(group, ranks == 1 ? std::string() : text(".rank", rank), part_ending);
}

CheckpointIndex parse_index(std::string_view bytes, const std::string& file, Cover cover) {
  if (bytes.size() > longest_index)
    throw FormatError(text(what, " has ", bytes.size(), " bytes, more than any valid one"),
                      {.file = file});
  return IndexReader(file, cover).read(bytes);
}

std::string format_index(const CheckpointIndex& index) {
  try {
    std::vector<std::string> files, groups;
    for (const auto& [name, bytes] : index.files)
      files.push_back(text(json(name).dump(), ": {\"bytes\": ", bytes, "}"));
    for (const auto& [group, tensors] : index.groups) {
      std::vector<std::string> lines;
      for (const IndexedTensor& tensor : tensors) lines.push_back(in_json(tensor));
      groups.push_back(text(json(group).dump(), ": [\n", join(lines, ",\n"), "]"));
    }
    return text("{\"format\": ", json(format_name).dump(), ",\n\"version\": ", checkpoint_version,
                ",\n\"state\": ", index.state, ",\n\"files\": {\n", join(files, ",\n"),
                "},\n\"tensors\": {\n", join(groups, ",\n"), "}}\n");
  } catch (const json::exception&) {
    throw UsageError("the name of a tensor or of a file in a checkpoint is not UTF-8");
  }
}

}  // namespace trestle::checkpoint
