#include "trestle/pipeline/execute/cut.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::pipeline {
namespace {

// One for each parameter and other stage that uses it, in the order of stages.
std::vector<StageTie> find_ties(const nn::Graph& graph, const std::vector<int>& stage_of_layer) {
  std::map<std::tuple<int, std::string, int>, std::vector<nn::ParameterTie>> uses;
  for (const auto& tie : graph.ties) {
    const auto [owner, parameter] = nn::owner_of(graph, tie);
    const int stage = stage_of_layer[tie.layer];
    if (stage != stage_of_layer[owner]) uses[{owner, parameter, stage}].push_back(tie);
  }
  std::vector<StageTie> ties;
  for (auto& [key, own] : uses) {
    const auto& [owner, parameter, stage] = key;
    ties.push_back({.owner = owner,
                    .parameter = parameter,
                    .route = {.from_stage = stage_of_layer[owner],
                              .to_stage = stage,
                              .skip = true,
                              .name = graph.layers[owner].name + "." + parameter},
                    .uses = std::move(own)});
  }
  return ties;
}

// A value that crosses to a stage.
struct Crossing {
  bool main = false;  // whether an unnamed edge takes it to the next stage
  std::string name;
};
using Crossings = std::map<std::pair<ValueId, int>, Crossing>;  // (value, stage that uses it)

void add_once(std::vector<ValueId>& values, ValueId value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

int index_of(const std::vector<ValueId>& values, ValueId value) {
  return static_cast<int>(std::find(values.begin(), values.end(), value) - values.begin());
}

// Also sets the stages' inputs and outputs, and the model's outputs.
Crossings find_crossings(const nn::Graph& graph, const std::vector<int>& stage_of_layer, Cut& cut) {
  Crossings crossings;
  for (const auto& edge : graph.edges) {
    const ValueId value{edge.from_layer, edge.from_output};
    const int to = stage_of_layer[edge.to_layer];
    const int from = edge.from_layer == nn::model_input ? -1 : stage_of_layer[edge.from_layer];
    if (edge.to_layer == static_cast<int>(graph.layers.size())) cut.model_outputs.push_back(value);
    if (from == to) continue;
    add_once(cut.stages[to].inputs, value);
    if (from < 0) continue;  // the caller passes the input to each stage that uses it
    add_once(cut.stages[from].outputs, value);
    Crossing& crossing = crossings[{value, to}];
    if (edge.name.empty() && to == from + 1) crossing.main = true;
    if (!edge.name.empty()) crossing.name = edge.name;
  }
  return crossings;
}

// One main route to each stage, then one route for each skip.
void add_routes(const nn::Graph& graph, const std::vector<int>& stage_of_layer,
                const Crossings& crossings, Cut& cut) {
  std::map<int, std::vector<ValueId>> main_values;
  for (const auto& [key, crossing] : crossings) {
    if (crossing.main) main_values[stage_of_layer[key.first.layer]].push_back(key.first);
  }
  for (const auto& [stage, values] : main_values) {
    cut.routes.push_back(
        {.from_stage = stage, .to_stage = stage + 1, .skip = false, .name = "main"});
    cut.route_values.push_back(values);
  }
  for (const auto& [key, crossing] : crossings) {
    if (crossing.main) continue;
    const auto& [value, to] = key;
    const std::string name = crossing.name.empty() ? graph.layers[value.layer].name : crossing.name;
    cut.routes.push_back(
        {.from_stage = stage_of_layer[value.layer], .to_stage = to, .skip = true, .name = name});
    cut.route_values.push_back({value});
  }
}

void index_route_values(Cut& cut) {
  for (auto& stage : cut.stages) {
    stage.output_routes.assign(stage.outputs.size(), 0);
    stage.input_routes.assign(stage.inputs.size(), 0);
  }
  for (std::size_t r = 0; r < cut.routes.size(); ++r) {
    auto& from = cut.route_outputs.emplace_back();
    auto& to = cut.route_inputs.emplace_back();
    StagePlan& maker = cut.stages[cut.routes[r].from_stage];
    StagePlan& taker = cut.stages[cut.routes[r].to_stage];
    for (const auto& value : cut.route_values[r]) {
      from.push_back(index_of(maker.outputs, value));
      to.push_back(index_of(taker.inputs, value));
      ++maker.output_routes[from.back()];
      ++taker.input_routes[to.back()];
    }
  }
}

}  // namespace

std::vector<std::string> balance_mistakes(const std::vector<int>& balance, int layers) {
  std::vector<std::string> mistakes;
  const std::string shown = "balance [" + join(balance, ", ") + "]";
  if (std::any_of(balance.begin(), balance.end(), [](int n) { return n < 1; })) {
    mistakes.push_back(shown +
                       " has a stage without layers: every entry counts the layers of one "
                       "stage and must be at least 1");
  }
  const int covered = std::accumulate(balance.begin(), balance.end(), 0);
  if (covered != layers) {
    mistakes.push_back(text(shown, " covers ", covered, " layers, the model has ", layers,
                            ". Leave 'balance' empty to have it measured."));
  }
  return mistakes;
}

Cut cut(const nn::Graph& graph, const std::vector<int>& balance) {
  const auto mistakes = balance_mistakes(balance, static_cast<int>(graph.layers.size()));
  if (!mistakes.empty()) throw UsageError(join(mistakes, "; "));
  Cut result;
  std::vector<int> stage_of_layer;
  int layer = 0;
  for (std::size_t s = 0; s < balance.size(); ++s) {
    result.stages.push_back({.first_layer = layer, .last_layer = layer + balance[s]});
    stage_of_layer.insert(stage_of_layer.end(), balance[s], static_cast<int>(s));
    layer += balance[s];
  }
  result.ties = find_ties(graph, stage_of_layer);
  // The caller gets the model's outputs from the last stage, which therefore uses them.
  stage_of_layer.push_back(static_cast<int>(balance.size()) - 1);
  add_routes(graph, stage_of_layer, find_crossings(graph, stage_of_layer, result), result);
  index_route_values(result);
  return result;
}

void refuse_late_owners(const nn::Graph& graph, const std::vector<int>& balance) {
  for (const StageTie& tie : cut(graph, balance).ties) {
    if (tie.route.from_stage < tie.route.to_stage) continue;
    const nn::ParameterTie& use = tie.uses.front();
    const std::string& layer = graph.layers[use.layer].name;
    throw UsageError(text("'", layer, ".", use.parameter, "' of stage ", tie.route.to_stage,
                          " is tied to '", tie.route.name, "' of the later stage ",
                          tie.route.from_stage, ", and several pipelines share the batch"),
                     {.hint = text("The first of the stages owns the parameter: tie(\"",
                                   tie.route.name, "\", \"", layer, ".", use.parameter,
                                   "\"). Or choose a 'balance' with both layers in one stage.")});
  }
}

}  // namespace trestle::pipeline
