#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/plan/gpt/fit_times.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/search/step_prediction.h"

// The rows of tests/data/vtrain/single_node.csv, and how far predictions are from them. The rows
// are the output of vTrain's simulator (tests/data/vtrain/README.md).
namespace trestle::plan::vtrain {

inline Machine machine() {
  return read_machine(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml");
}

inline std::vector<std::vector<std::string>> read_csv(const std::string& path) {
  std::ifstream file(std::string(TRESTLE_SOURCE_DIR) + "/tests/data/vtrain/" + path);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] >= '0' && line[0] <= '9') rows.push_back(split(line, ','));
  return rows;
}

// vTrain's vocabulary is not padded, and its head has its own table.
inline std::vector<KnownStep> steps() {
  std::vector<KnownStep> steps;
  for (const auto& row : read_csv("single_node.csv")) {
    const auto number = [&row](std::size_t i) { return std::stoi(row.at(i)); };
    steps.push_back({.model = {.layers = number(5),
                               .hidden = number(3),
                               .heads = number(4),
                               .sequence = number(6),
                               .vocabulary = 50257,
                               .tied_head = false},
                     .strategy = {.tensor = number(7),
                                  .pipeline = number(9),
                                  .data = number(8),
                                  .micro_batch = number(2)},
                     .batch = number(1),
                     .seconds = std::stod(row.at(10)) / 1000});
  }
  return steps;
}

// The simulator's prediction. Steps with equal tables share them.
class Predictor {
 public:
  double operator()(const Machine& machine, const KnownStep& step) {
    const std::int64_t n = micro_batches_of(step.strategy, step.batch);
    auto& table = tables_[{step.strategy.pipeline, n}];
    if (table.stages == 0) table = table_of(step.strategy, n);
    return predict_step(table, step.strategy.chunks,
                        PlannedGpt(step.model, machine).costs(step.strategy, n))
        .seconds;
  }

 private:
  std::map<std::pair<int, std::int64_t>, schedule::Schedule> tables_;
};

inline std::vector<double> predictions(const Machine& machine,
                                       const std::vector<KnownStep>& steps) {
  Predictor predict;
  std::vector<double> seconds;
  for (const KnownStep& step : steps) seconds.push_back(predict(machine, step));
  return seconds;
}

inline std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  Random random(seed);
  shuffle(order, random);
  return order;
}

inline std::vector<KnownStep> chosen(const std::vector<KnownStep>& steps,
                                     const std::vector<std::size_t>& order, std::size_t begin,
                                     std::size_t end) {
  std::vector<KnownStep> chosen;
  for (std::size_t i = begin; i < end; ++i) chosen.push_back(steps[order[i]]);
  return chosen;
}

// Mean of |predicted / known - 1|, in percent.
inline double mape(const std::vector<KnownStep>& steps, const std::vector<double>& predicted) {
  double sum = 0;
  for (std::size_t i = 0; i < steps.size(); ++i)
    sum += std::abs(predicted[i] / steps[i].seconds - 1);
  return 100 * sum / static_cast<double>(steps.size());
}

// The steps with equal devices, batch, width and layers are the choices of one group. Groups of two
// are not counted.
struct Picks {
  int groups = 0;
  int exact = 0;      // groups whose fastest step is picked
  double regret = 0;  // percent by which the pick is slower than the fastest, on average
};

inline Picks picks(const std::vector<KnownStep>& steps, const std::vector<double>& predicted) {
  std::map<std::tuple<int, std::int64_t, std::int64_t, std::int64_t>, std::vector<std::size_t>>
      groups;
  for (std::size_t i = 0; i < steps.size(); ++i)
    groups[{steps[i].strategy.devices(), steps[i].batch, steps[i].model.hidden,
            steps[i].model.layers}]
        .push_back(i);
  Picks result;
  for (const auto& [key, group] : groups) {
    std::size_t pick = group.front(), best = group.front();
    for (const std::size_t i : group) {
      if (predicted[i] < predicted[pick]) pick = i;
      if (steps[i].seconds < steps[best].seconds) best = i;
    }
    if (group.size() < 3) continue;
    ++result.groups;
    if (pick == best) ++result.exact;
    result.regret += 100 * (steps[pick].seconds / steps[best].seconds - 1);
  }
  result.regret /= result.groups;
  return result;
}

// The shape of a step's block: width, tensor ranks, micro-batch.
using Shape = std::tuple<std::int64_t, int, int>;
inline Shape shape_of(const KnownStep& step) {
  return {step.model.hidden, step.strategy.tensor, step.strategy.micro_batch};
}

}  // namespace trestle::plan::vtrain
