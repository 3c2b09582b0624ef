#include "trestle/checkpoint/files/pickle/pickled_state_dict.h"

#include <algorithm>
#include <unordered_set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickle/pickle_writer.h"

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
  PickleWriter out;
  out.open_ordered_dict();
  for (std::size_t number = 0; number < tensors.size(); ++number)
    out.string(tensors[number].name)
        .tensor(tensors[number].dtype, text(number), tensors[number].shape);
  return out.close_dict().finish();
}

}  // namespace trestle::checkpoint
