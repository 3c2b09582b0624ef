#include "trestle/plan/layer_profile.h"

#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

using nlohmann::ordered_json;

// Every number of a profile is checked here: the balances rely on sums of them. Ten terabytes, or as
// many seconds, are more than a layer has.
template <class T>
T amount(const ordered_json& object, const char* key) {
  constexpr double most = 1e13;
  const double value = object.at(key).get<double>();
  if (!(value >= 0 && value <= most))
    throw FormatError(text("'", key, "' is ", value, ", outside of 0 to ", most));
  return object.at(key).get<T>();
}

std::vector<int> layers_in(const ordered_json& list, int least, int most) {
  std::vector<int> layers = list.get<std::vector<int>>();
  for (const int layer : layers) {
    if (layer < least || layer > most)
      throw FormatError(text("layer ", layer, " is outside of ", least, " to ", most));
  }
  return layers;
}

LayerProfile read(const ordered_json& json) {
  LayerProfile profile;
  for (const auto& layer : json.at("layers")) {
    profile.layers.push_back({.name = layer.at("name").get<std::string>(),
                              .forward = amount<double>(layer, "forward_seconds"),
                              .backward = amount<double>(layer, "backward_seconds"),
                              .parameters = amount<Bytes>(layer, "parameter_bytes"),
                              .buffers = amount<Bytes>(layer, "buffer_bytes"),
                              .inner = amount<Bytes>(layer, "inner_bytes"),
                              .transient = amount<Bytes>(layer, "transient_bytes")});
  }
  const int count = static_cast<int>(profile.layers.size());
  for (const auto& value : json.at("values")) {
    profile.values.push_back(
        {.from = layers_in(ordered_json::array({value.at("from")}), -1, count - 1)[0],
         .to = layers_in(value.at("to"), 0, count),
         .saved_by = layers_in(value.at("saved_by"), 0, count - 1),
         .bytes = amount<Bytes>(value, "bytes")});
  }
  for (const auto& pair : json.at("together")) {
    const auto layers = layers_in(pair, 0, count - 1);
    if (layers.size() != 2 || layers[0] > layers[1])
      throw FormatError("'together' wants pairs of a first and a last layer");
    profile.together.emplace_back(layers[0], layers[1]);
  }
  return profile;
}

}  // namespace

double LayerProfile::seconds() const {
  double sum = 0;
  for (const LayerCost& layer : layers) sum += layer.forward + layer.backward;
  return sum;
}

std::string to_json(const LayerProfile& profile) {
  ordered_json json;
  json["layers"] = ordered_json::array();
  for (const LayerCost& layer : profile.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"forward_seconds", layer.forward},
                              {"backward_seconds", layer.backward},
                              {"parameter_bytes", layer.parameters},
                              {"buffer_bytes", layer.buffers},
                              {"inner_bytes", layer.inner},
                              {"transient_bytes", layer.transient}});
  }
  json["values"] = ordered_json::array();
  for (const ValueCost& value : profile.values) {
    json["values"].push_back({{"from", value.from},
                              {"to", value.to},
                              {"saved_by", value.saved_by},
                              {"bytes", value.bytes}});
  }
  json["together"] = profile.together;
  return json.dump(1) + "\n";
}

LayerProfile layer_profile_from_json(const std::string& text) {
  try {
    return read(ordered_json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(trestle::text("no layer profile: ", error.what()));
  }
}

}  // namespace trestle::plan
