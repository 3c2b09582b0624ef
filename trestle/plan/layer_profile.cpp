#include "trestle/plan/layer_profile.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

using nlohmann::ordered_json;

// Balances add these up. No layer needs more than 10^13 bytes or seconds.
constexpr double most = 1e13;

template <class T>
T amount(const ordered_json& object, const char* key) {
  const double value = object.at(key).get<double>();
  if (!(value >= 0 && value <= most))
    throw FormatError(text("'", key, "' is ", value, ", outside of 0 to ", most));
  if (value > static_cast<double>(std::numeric_limits<T>::max()))
    throw FormatError(text("'", key, "' is ", value, ", which is too large"));
  return object.at(key).get<T>();
}

std::vector<int> layers_in(const ordered_json& list, int least, int most) {
  std::vector<int> layers;
  for (const auto& one : list) {
    const double number = one.get<double>();
    if (!one.is_number_integer() || !(number >= least && number <= most))
      throw FormatError(
          text("a layer has the number ", one.dump(), ", outside of ", least, " to ", most));
    layers.push_back(one.get<int>());
  }
  return layers;
}

constexpr std::pair<const char*, MessageKind> message_kinds[] = {
    {"all_reduce", MessageKind::AllReduce},
    {"all_gather", MessageKind::AllGather},
    {"reduce_scatter", MessageKind::ReduceScatter},
    {"all_to_all", MessageKind::AllToAll}};

std::vector<LayerMessage> read_messages(const ordered_json& layer, const char* key) {
  std::vector<LayerMessage> messages;
  for (const auto& one : layer.value(key, ordered_json::array())) {
    const std::string word = one.at("kind").get<std::string>();
    const auto* const kind = std::find_if(std::begin(message_kinds), std::end(message_kinds),
                                          [&](const auto& known) { return word == known.first; });
    if (kind == std::end(message_kinds))
      throw FormatError(text("'", word, "' is not a kind of message"));
    messages.push_back({.kind = kind->second,
                        .bytes = amount<Bytes>(one, "bytes"),
                        .beside = amount<double>(one, "beside_seconds")});
  }
  return messages;
}

ordered_json to_json(const std::vector<LayerMessage>& messages) {
  ordered_json list = ordered_json::array();
  for (const LayerMessage& message : messages) {
    const auto* const kind =
        std::find_if(std::begin(message_kinds), std::end(message_kinds),
                     [&](const auto& known) { return message.kind == known.second; });
    list.push_back(
        {{"kind", kind->first}, {"bytes", message.bytes}, {"beside_seconds", message.beside}});
  }
  return list;
}

LayerProfile read(const ordered_json& json) {
  LayerProfile profile;
  if (json.contains("examples")) profile.examples = amount<int>(json, "examples");
  profile.memory_format = json.value("memory_format", "");
  profile.checkpoint = json.value("checkpoint", std::vector<std::string>());
  profile.split_recomputed = json.value("split_recomputed", false);
  profile.sequence_parallel = json.value("sequence_parallel", false);
  if (json.contains("loss_memory")) profile.loss_memory = amount<double>(json, "loss_memory");
  for (const auto& layer : json.at("layers")) {
    profile.layers.push_back(
        {.name = layer.at("name").get<std::string>(),
         .forward = amount<double>(layer, "forward_seconds"),
         .backward = amount<double>(layer, "backward_seconds"),
         .parameters = amount<Bytes>(layer, "parameter_bytes"),
         .frozen = layer.contains("frozen_bytes") ? amount<Bytes>(layer, "frozen_bytes") : 0,
         .buffers = amount<Bytes>(layer, "buffer_bytes"),
         .inner = amount<Bytes>(layer, "inner_bytes"),
         .transient = amount<Bytes>(layer, "transient_bytes"),
         .transient_forward = amount<Bytes>(layer, layer.contains("transient_forward_bytes")
                                                       ? "transient_forward_bytes"
                                                       : "transient_bytes"),
         .forward_messages = read_messages(layer, "forward_messages"),
         .backward_messages = read_messages(layer, "backward_messages")});
    if (const auto split = layer.find("split_backward"); split != layer.end())
      profile.layers.back().split = {
          .input_grad = amount<double>(*split, "input_grad_seconds"),
          .weight_grad = amount<double>(*split, "weight_grad_seconds"),
          .kept_for_weights = amount<Bytes>(*split, "kept_for_weights_bytes"),
          .transient_weight_grad = split->contains("transient_weight_grad_bytes")
                                       ? amount<Bytes>(*split, "transient_weight_grad_bytes")
                                       : profile.layers.back().transient};
  }
  const int count = static_cast<int>(profile.layers.size());
  for (const auto& value : json.at("values")) {
    profile.values.push_back(
        {.from = layers_in(ordered_json::array({value.at("from")}), -1, count - 1)[0],
         .to = layers_in(value.at("to"), 0, count),
         .saved_by = layers_in(value.at("saved_by"), 0, count - 1),
         .bytes = amount<Bytes>(value, "bytes")});
    if (!value.contains("view_of")) continue;
    const int number = static_cast<int>(profile.values.size()) - 1;
    profile.values.back().view_of =
        layers_in(ordered_json::array({value.at("view_of")}), 0, number - 1)[0];
  }
  for (const auto& pair : json.at("together")) {
    const auto layers = layers_in(pair, 0, count - 1);
    if (layers.size() != 2 || layers[0] > layers[1])
      throw FormatError("'together' must hold pairs of a first and a last layer");
    profile.together.emplace_back(layers[0], layers[1]);
  }
  for (const auto& tie : json.value("ties", ordered_json::array())) {
    profile.ties.push_back(
        {.owner = layers_in(ordered_json::array({tie.at("owner")}), 0, count - 1)[0],
         .users = layers_in(tie.at("users"), 0, count - 1),
         .bytes = amount<Bytes>(tie, "bytes"),
         .frozen = tie.value("frozen", false)});
  }
  return profile;
}

void check_amounts(const LayerCost& layer) {
  const auto refuse = [&](const char* what, auto value) {
    if (!(value >= 0 && static_cast<double>(value) <= most))
      throw UsageError(text("layer '", layer.name, "' of a profile: ", what, " = ", value,
                            ", outside of 0 to ", most));
  };
  refuse("forward", layer.forward);
  refuse("backward", layer.backward);
  refuse("parameters", layer.parameters);
  refuse("frozen", layer.frozen);
  refuse("trained", layer.trained());
  refuse("buffers", layer.buffers);
  refuse("inner", layer.inner);
  refuse("transient", layer.transient);
  refuse("transient_forward", layer.transient_forward);
  if (layer.split) {
    refuse("input_grad", layer.split->input_grad);
    refuse("weight_grad", layer.split->weight_grad);
    refuse("kept_for_weights", layer.split->kept_for_weights);
    refuse("transient_weight_grad", layer.split->transient_weight_grad);
  }
  for (const auto* list : {&layer.forward_messages, &layer.backward_messages})
    for (const LayerMessage& message : *list) {
      refuse("the bytes of a message", message.bytes);
      refuse("the seconds beside a message", message.beside);
    }
}

}  // namespace

std::vector<int> memory_of_values(const LayerProfile& profile) {
  std::vector<int> memory;
  for (const ValueCost& value : profile.values)
    memory.push_back(value.view_of < 0 ? static_cast<int>(memory.size())
                                       : memory.at(static_cast<std::size_t>(value.view_of)));
  return memory;
}

void check(const LayerProfile& profile) {
  const int count = static_cast<int>(profile.layers.size());
  const auto in_range = [&](int layer, int least, int last, const char* what) {
    if (layer < least || layer > last)
      throw UsageError(
          text(what, " of a profile names layer ", layer, ", outside of ", least, " to ", last));
  };
  for (const LayerCost& layer : profile.layers) check_amounts(layer);
  if (!(profile.loss_memory >= 0 && profile.loss_memory <= most))
    throw UsageError(
        text("loss_memory of a profile is ", profile.loss_memory, ", outside of 0 to ", most));
  int earlier = 0;
  for (const ValueCost& value : profile.values) {
    if (value.view_of < -1 || value.view_of >= earlier)
      throw UsageError(text("value ", earlier, " of a profile is a view of value ", value.view_of,
                            ", which is not an earlier one"));
    ++earlier;
    in_range(value.from, -1, count - 1, "a value");
    for (const int layer : value.to) in_range(layer, 0, count, "a value");
    for (const int layer : value.saved_by) in_range(layer, 0, count - 1, "a value");
    if (value.bytes < 0 || static_cast<double>(value.bytes) > most)
      throw UsageError(text("a value of a profile has ", value.bytes, " bytes"));
  }
  for (const TiedCost& tie : profile.ties) {
    in_range(tie.owner, 0, count - 1, "a tied parameter");
    for (const int layer : tie.users) in_range(layer, 0, count - 1, "a tied parameter");
    if (tie.bytes < 0 || static_cast<double>(tie.bytes) > most)
      throw UsageError(text("a tied parameter of a profile has ", tie.bytes, " bytes"));
  }
  for (const auto& [first, last] : profile.together) {
    in_range(first, 0, last, "a pair of layers that share a parameter");
    in_range(last, first, count - 1, "a pair of layers that share a parameter");
  }
}

std::vector<const TiedCost*> copies_in(const LayerProfile& profile, int first, int last) {
  const auto here = [&](int layer) { return layer >= first && layer < last; };
  std::vector<const TiedCost*> copies;
  for (const TiedCost& tie : profile.ties)
    if (!here(tie.owner) && std::any_of(tie.users.begin(), tie.users.end(), here))
      copies.push_back(&tie);
  return copies;
}

double LayerProfile::seconds() const {
  double sum = 0;
  for (const LayerCost& layer : layers) sum += layer.forward + layer.backward;
  return sum;
}

std::string to_json(const LayerProfile& profile) {
  ordered_json json;
  if (profile.examples > 0) json["examples"] = profile.examples;
  if (!profile.memory_format.empty()) json["memory_format"] = profile.memory_format;
  if (!profile.checkpoint.empty()) json["checkpoint"] = profile.checkpoint;
  if (profile.split_recomputed) json["split_recomputed"] = true;
  if (profile.sequence_parallel) json["sequence_parallel"] = true;
  if (profile.loss_memory != 1) json["loss_memory"] = profile.loss_memory;
  json["layers"] = ordered_json::array();
  for (const LayerCost& layer : profile.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"forward_seconds", layer.forward},
                              {"backward_seconds", layer.backward},
                              {"parameter_bytes", layer.parameters},
                              {"buffer_bytes", layer.buffers},
                              {"inner_bytes", layer.inner},
                              {"transient_bytes", layer.transient},
                              {"transient_forward_bytes", layer.transient_forward}});
    ordered_json& added = json["layers"].back();
    if (layer.frozen > 0) added["frozen_bytes"] = layer.frozen;
    if (layer.split)
      added["split_backward"] = {
          {"input_grad_seconds", layer.split->input_grad},
          {"weight_grad_seconds", layer.split->weight_grad},
          {"kept_for_weights_bytes", layer.split->kept_for_weights},
          {"transient_weight_grad_bytes", layer.split->transient_weight_grad}};
    if (!layer.forward_messages.empty())
      added["forward_messages"] = to_json(layer.forward_messages);
    if (!layer.backward_messages.empty())
      added["backward_messages"] = to_json(layer.backward_messages);
  }
  json["values"] = ordered_json::array();
  for (const ValueCost& value : profile.values) {
    json["values"].push_back({{"from", value.from},
                              {"to", value.to},
                              {"saved_by", value.saved_by},
                              {"bytes", value.bytes}});
    if (value.view_of >= 0) json["values"].back()["view_of"] = value.view_of;
  }
  json["together"] = profile.together;
  for (const TiedCost& tie : profile.ties) {
    json["ties"].push_back({{"owner", tie.owner}, {"users", tie.users}, {"bytes", tie.bytes}});
    if (tie.frozen) json["ties"].back()["frozen"] = true;
  }
  return json.dump(1) + "\n";
}

LayerProfile layer_profile_from_json(const std::string& text) {
  try {
    return read(ordered_json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    const std::string_view words = error.what();  // without the library's "[...] " prefix
    throw FormatError(trestle::text("not a layer profile: ", words.substr(words.find("] ") + 2)));
  }
}

}  // namespace trestle::plan
