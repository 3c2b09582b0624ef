#include "trestle/nn/resolve_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/text.h"
#include "trestle/nn/wiring.h"

namespace trestle::nn {

namespace {

// The layer and output that produce a value. Taps and the main lane are lists of these.
struct ValueSource {
  int layer = model_input;
  int output = 0;
};

// Turns entries into a graph, front to back. Collects mistakes instead of stopping at the first.
class Wiring {
 public:
  Wiring(const std::vector<Entry>& entries, int inputs) : entries_(entries) {
    graph_.inputs = inputs;
    for (int i = 0; i < inputs; ++i) lane_.push_back({model_input, i});
    for (std::size_t i = 0; i < entries.size(); ++i) {
      for (const Tap& tap : entries[i].kept) keepers_[tap.name].push_back(i);
    }
    for (const auto& [name, layers] : keepers_) {
      if (layers.size() > 1) {
        mistakes_.push_back(
            text("'", name, "' is kept ", layers.size(), " times: by ", names_of(layers)));
      }
    }
  }

  void add_layer(std::size_t index) {
    const Entry& entry = entries_[index];
    const int layer = static_cast<int>(index);
    graph_.layers.push_back(entry.layer);
    const std::vector<ValueSource> lane = std::move(lane_);
    connect(layer, entry.layer, lane, entry.taken);
    // Taps before the lane: an output kept as a side output is not passed on by default.
    std::vector<int> side_outputs;
    for (const Tap& tap : entry.kept) keep(index, tap, side_outputs);
    lane_ = outputs_passed_on(layer, entry, side_outputs);
  }

  void finish(const std::vector<std::string>& returned) {
    const int end = static_cast<int>(entries_.size());
    int argument = 0;
    for (const ValueSource& source : lane_) {
      graph_.edges.push_back({source.layer, source.output, end, argument++, ""});
    }
    for (const std::string& name : returned) {
      if (const auto source = find(name, entries_.size(), "the model returns")) {
        graph_.edges.push_back({source->layer, source->output, end, argument++, name});
      }
    }
    graph_.outputs = argument;
  }

  Graph take_graph() {
    for (std::string& mistake : layer_mistakes(graph_.layers))
      mistakes_.push_back(std::move(mistake));
    throw_mistakes(mistakes_);
    throw_mistakes(edge_mistakes(graph_));  // finds none; checks the rules of every Graph
    return std::move(graph_);
  }

 private:
  std::string names_of(const std::vector<std::size_t>& layers) const {
    std::vector<std::string> names;
    for (const std::size_t layer : layers)
      names.push_back("layer '" + entries_[layer].layer.name + "'");
    return join(names, " and ");
  }

  // Connects a layer's arguments: the lane first, then the values taken by name.
  void connect(int index, const Layer& layer, const std::vector<ValueSource>& lane,
               const std::vector<std::string>& taken) {
    int argument = 0;
    for (const ValueSource& source : lane) {
      graph_.edges.push_back({source.layer, source.output, index, argument++, ""});
    }
    for (const std::string& name : taken) {
      const auto source =
          find(name, static_cast<std::size_t>(index), text("layer '", layer.name, "' takes"));
      if (source) graph_.edges.push_back({source->layer, source->output, index, argument, name});
      ++argument;  // a wrong name still takes an argument: that is one mistake, not two
    }
    if (argument >= layer.required_arguments && argument <= layer.arguments) return;
    const bool is_first = index == 0;
    const std::string given =
        text(lane.size(), is_first ? " from the model's input" : " from the layer before", ", ",
             taken.size(), " taken by name");
    const std::string more_inputs =
        is_first && taken.empty() ? text("; make a model of ", layer.required_arguments,
                                         " inputs with nn::Layers(", layer.required_arguments, ")")
                                  : "";
    if (argument > layer.arguments) {
      mistakes_.push_back(text("layer '", layer.name, "' takes ", layer.arguments,
                               " value(s) but gets ", argument, " (", given, ")"));
    } else {
      mistakes_.push_back(text("layer '", layer.name, "' takes ", layer.required_arguments,
                               " value(s) but gets ", argument, " (", given, "): argument ",
                               argument, " has no value", more_inputs));
    }
  }

  void keep(std::size_t index, const Tap& tap, std::vector<int>& side_outputs) {
    const Layer& layer = entries_[index].layer;
    ValueSource source{static_cast<int>(index), tap.output};
    if (tap.output == kept_input) {
      const auto first = std::find_if(
          graph_.edges.begin(), graph_.edges.end(),
          [&](const Edge& edge) { return edge.to_layer == source.layer && edge.to_argument == 0; });
      if (first == graph_.edges.end()) {
        mistakes_.push_back(
            text("layer '", layer.name, "' keeps its input as '", tap.name, "' but has none"));
      } else {
        source = {first->from_layer, first->from_output};
      }
    } else {
      check_output(layer, tap.output, text("keeps as '", tap.name, "'"));
      if (tap.output > 0) side_outputs.push_back(tap.output);
    }
    taps_.emplace(tap.name, source);
  }

  void check_output(const Layer& layer, int output, const std::string& verb) {
    if (output >= 0 && (layer.outputs < 0 || output < layer.outputs)) return;
    mistakes_.push_back(text("layer '", layer.name, "' ", verb, " its output ", output,
                             ", but has ", std::max(layer.outputs, 0),
                             " output(s), counted from 0"));
  }

  std::vector<ValueSource> outputs_passed_on(int index, const Entry& entry,
                                             const std::vector<int>& side_outputs) {
    std::vector<ValueSource> lane;
    if (entry.passed_on) {
      for (const int output : *entry.passed_on) {
        check_output(entry.layer, output, "passes on");
        lane.push_back({index, output});
      }
      return lane;
    }
    if (entry.layer.outputs < 0) {
      mistakes_.push_back(
          text("layer '", entry.layer.name,
               "' returns a std::vector of tensors: select outputs with pass_on({0, ...})"));
      return {{index, 0}};
    }
    for (int output = 0; output < entry.layer.outputs; ++output) {
      const bool side =
          std::find(side_outputs.begin(), side_outputs.end(), output) != side_outputs.end();
      if (!side) lane.push_back({index, output});
    }
    return lane;
  }

  // The value that a layer before `layer` keeps under a name.
  std::optional<ValueSource> find(const std::string& name, std::size_t layer,
                                  const std::string& who) {
    const auto keepers = keepers_.find(name);
    if (keepers == keepers_.end()) {
      std::vector<std::string> candidates;
      for (const auto& [candidate, layers] : keepers_) candidates.push_back(candidate);
      mistakes_.push_back(
          text(who, " '", name, "', which no layer keeps", did_you_mean(name, candidates)));
      return {};
    }
    const std::size_t keeper = keepers->second.front();
    if (keeper == layer) {
      mistakes_.push_back(text(who, " '", name, "', which it keeps itself"));
      return {};
    }
    if (keeper > layer) {
      mistakes_.push_back(text(who, " '", name, "', which layer '", entries_[keeper].layer.name,
                               "' keeps only later"));
      return {};
    }
    return taps_.at(name);
  }

  const std::vector<Entry>& entries_;
  Graph graph_;
  std::vector<ValueSource> lane_;
  std::map<std::string, std::vector<std::size_t>> keepers_;
  std::map<std::string, ValueSource> taps_;
  std::vector<std::string> mistakes_;
};

}  // namespace

Graph resolve(const std::vector<Entry>& entries, int inputs,
              const std::vector<std::string>& returned) {
  Wiring wiring(entries, inputs);
  for (std::size_t i = 0; i < entries.size(); ++i) wiring.add_layer(i);
  wiring.finish(returned);
  return wiring.take_graph();
}

}  // namespace trestle::nn
