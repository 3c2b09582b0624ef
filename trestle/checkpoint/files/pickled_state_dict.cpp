#include "trestle/checkpoint/files/pickled_state_dict.h"

#include <algorithm>
#include <unordered_set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/storage_types.h"

namespace trestle::checkpoint {

namespace {

using TensorKind = PickledValue::Kind;

bool holds_tensors(const Pickle::Dict& dict) {
  return std::any_of(dict.begin(), dict.end(),
                     [](const auto& entry) { return entry.second.kind == TensorKind::Tensor; });
}

std::string key_text(const PickledValue& key) {
  if (key.kind == TensorKind::String) return "'" + shown(key.text) + "'";
  return key.kind == TensorKind::Integer ? text(key.number) : "?";
}

std::string keys_of(const Pickle::Dict& dict) {
  constexpr std::size_t most_shown = 20;
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict)
    if (keys.size() < most_shown) keys.push_back(key_text(key));
  return join(keys, ", ") + (dict.size() > most_shown ? ", ..." : "");
}

// Writes the opcodes of a pickle of tensors.
class PickleWriter {
 public:
  PickleWriter& raw(std::string_view opcodes) {
    out_ += opcodes;
    return *this;
  }
  PickleWriter& name(std::string_view words) {
    out_ += 'X';
    return little_endian(words.size(), 4).raw(words);
  }
  PickleWriter& global(std::string_view module, std::string_view name) {
    return raw("c").raw(module).raw("\n").raw(name).raw("\n");
  }
  PickleWriter& integer(std::uint64_t value) {
    if (value < 0x80000000) {
      out_ += 'J';
      return little_endian(value, 4);
    }
    return raw("\x8a\x08").little_endian(value, 8);
  }
  template <class Integers>
  PickleWriter& tuple(const Integers& values) {
    raw("(");
    for (const auto value : values) integer(static_cast<std::uint64_t>(value));
    return raw("t");
  }
  std::string take() { return std::move(out_); }

 private:
  PickleWriter& little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }

  std::string out_;
};

// "torch.FloatStorage" without "torch.".
std::string_view storage_class(const std::string& dtype) {
  const auto found = std::find_if(storage_types.begin(), storage_types.end(),
                                  [&](const StorageType& type) { return type.dtype == dtype; });
  return found->python.substr(std::string_view("torch.").size());
}

}  // namespace

PickledStateDict find_state_dict(const Pickle& pickle, const std::string& file) {
  if (pickle.root.kind != TensorKind::Dict)
    throw FormatError("has no dict of tensors",
                      {.file = file, .hint = "In Python: torch.save(model.state_dict(), file)."});
  const Pickle::Dict& root = pickle.dicts[pickle.root.place()];
  std::vector<const std::pair<PickledValue, PickledValue>*> inner;
  for (const auto& entry : root)
    if (entry.second.kind == TensorKind::Dict && entry.second.place() != pickle.root.place() &&
        holds_tensors(pickle.dicts[entry.second.place()]))
      inner.push_back(&entry);
  if (inner.size() > 1) {
    std::vector<std::string> keys;
    for (const auto* entry : inner) keys.push_back(key_text(entry->first));
    throw FormatError(
        text("has several dicts of tensors: ", join(keys, ", ")),
        {.file = file,
         .hint = text("Save only the one that you need, in Python: torch.save(torch.load(file)[",
                      keys[0], "], other_file).")});
  }
  const Pickle::Dict& dict = inner.empty() ? root : pickle.dicts[inner[0]->second.place()];
  if (!holds_tensors(dict))
    throw FormatError(text("has no tensors; its keys are: ", keys_of(root)), {.file = file});
  PickledStateDict found;
  std::unordered_set<std::string_view> seen;
  for (const auto& [key, value] : dict) {
    if (key.kind != TensorKind::String)
      throw FormatError(text("the key ", key_text(key), " of a tensor is not a name"),
                        {.file = file});
    if (!seen.insert(key.text).second)
      throw FormatError(text("has the key ", key_text(key), " twice"), {.file = file});
    if (value.kind == TensorKind::Tensor)
      found.tensors.push_back({std::string(key.text), value.place()});
    else
      found.others.emplace_back(key.text);
  }
  return found;
}

std::string format_pickle(const std::vector<TensorToPickle>& tensors) {
  const auto ordered_dict = [](PickleWriter& out) {
    out.global("collections", "OrderedDict").raw(")R");
  };
  PickleWriter out;
  out.raw("\x80\x02");
  ordered_dict(out);
  out.raw("(");
  for (std::size_t number = 0; number < tensors.size(); ++number) {
    const TensorToPickle& tensor = tensors[number];
    std::vector<std::int64_t> strides(tensor.shape.size(), 1);
    std::uint64_t elements = 1;
    for (std::size_t i = tensor.shape.size(); i > 0; --i) {
      strides[i - 1] = static_cast<std::int64_t>(elements);
      elements *= static_cast<std::uint64_t>(tensor.shape[i - 1]);
    }
    out.name(tensor.name).global("torch._utils", "_rebuild_tensor_v2").raw("((");
    out.name("storage").global("torch", storage_class(tensor.dtype)).name(text(number));
    out.name("cpu").integer(elements).raw("tQ").integer(0).tuple(tensor.shape).tuple(strides);
    out.raw("\x89");    // requires_grad
    ordered_dict(out);  // backward hooks
    out.raw("tR");
  }
  return out.raw("u.").take();
}

}  // namespace trestle::checkpoint
