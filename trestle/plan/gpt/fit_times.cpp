#include "trestle/plan/gpt/fit_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/gpt/layer_times.h"
#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::plan {
namespace {

constexpr std::size_t constants = 7;
using Logs = std::array<double, constants>;  // of the constants
using Square = std::array<Logs, constants>;

std::array<Figure*, constants> free_figures(Machine& machine) {
  TransformerTimes& times = machine.transformer;
  return {&times.matrix_efficiency, &times.product_cost, &times.score_passes,
          &times.activation_passes, &times.layer_floor,  &times.head_efficiency,
          &times.step_seconds};
}

// Efficiencies are at most 1, and no constant is so small or large that it has no effect.
constexpr Logs least_logs = {-5, 10, -5, -5, -15, -5, -15};
constexpr Logs most_logs = {0, 30, 6, 6, 0, 0, 0};

Logs logs_of(Machine machine) {
  Logs logs{};
  const auto figures = free_figures(machine);
  for (std::size_t i = 0; i < constants; ++i)
    logs[i] =
        std::clamp(std::log(std::max(figures[i]->value, 1e-300)), least_logs[i], most_logs[i]);
  return logs;
}

void set_logs(Machine* machine, const Logs& logs) {
  const auto figures = free_figures(*machine);
  for (std::size_t i = 0; i < constants; ++i) figures[i]->value = std::exp(logs[i]);
}

std::vector<double> log_errors(const Machine& machine, const std::vector<KnownStep>& steps) {
  std::vector<double> errors;
  errors.reserve(steps.size());
  for (const KnownStep& step : steps)
    errors.push_back(std::log(pipeline_seconds(machine, step) / step.seconds));
  return errors;
}

// Errors whose squares grow in proportion to a large error (the pseudo-Huber loss). A shape whose
// kernels are unusually slow then moves the constants less.
double soft(double error) {
  constexpr double large = 0.05;
  const double ratio = error / large;
  const double square = 2 * large * large * (std::sqrt(1 + ratio * ratio) - 1);
  return error < 0 ? -std::sqrt(square) : std::sqrt(square);
}

std::vector<double> soft_errors(const Machine& machine, const std::vector<KnownStep>& steps) {
  std::vector<double> errors = log_errors(machine, steps);
  for (double& error : errors) error = soft(error);
  return errors;
}

double sum_of_squares(const std::vector<double>& errors) {
  double sum = 0;
  for (const double error : errors) sum += error * error;
  return sum;
}

// Gauss's elimination with pivots. A constant whose row is 0 keeps its value.
Logs solve(Square matrix, Logs right) {
  for (std::size_t column = 0; column < constants; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column + 1; row < constants; ++row)
      if (std::abs(matrix[row][column]) > std::abs(matrix[pivot][column])) pivot = row;
    std::swap(matrix[column], matrix[pivot]);
    std::swap(right[column], right[pivot]);
    if (matrix[column][column] == 0) continue;
    for (std::size_t row = column + 1; row < constants; ++row) {
      const double factor = matrix[row][column] / matrix[column][column];
      for (std::size_t i = column; i < constants; ++i) matrix[row][i] -= factor * matrix[column][i];
      right[row] -= factor * right[column];
    }
  }
  Logs result{};
  for (std::size_t row = constants; row-- > 0;) {
    double sum = right[row];
    for (std::size_t i = row + 1; i < constants; ++i) sum -= matrix[row][i] * result[i];
    result[row] = matrix[row][row] == 0 ? 0 : sum / matrix[row][row];
  }
  return result;
}

class Fit {
 public:
  Fit(Machine* machine, const std::vector<KnownStep>& steps)
      : machine_(*machine), steps_(steps), logs_(logs_of(*machine)) {
    set_logs(&machine_, logs_);
    errors_ = soft_errors(machine_, steps_);
    square_ = sum_of_squares(errors_);
  }

  void run() {
    constexpr int most_rounds = 300;
    double damping = 1e-2;
    for (int round = 0; round < most_rounds && damping < 1e12; ++round) {
      find_normal_equations();
      bool better = false;
      while (!better && damping < 1e12) {
        better = try_step(damping);
        damping = better ? std::max(damping / 3, 1e-9) : damping * 4;
      }
      if (!better || gain_ < 1e-12 * square_) return;
    }
  }

 private:
  void find_normal_equations() {
    constexpr double step = 1e-5;
    std::vector<std::vector<double>> slopes(constants);
    for (std::size_t i = 0; i < constants; ++i) {
      Logs moved = logs_;
      const double way = logs_[i] + step > most_logs[i] ? -step : step;
      moved[i] += way;
      Machine machine = machine_;
      set_logs(&machine, moved);
      slopes[i] = soft_errors(machine, steps_);
      for (std::size_t k = 0; k < errors_.size(); ++k)
        slopes[i][k] = (slopes[i][k] - errors_[k]) / way;
    }
    for (std::size_t i = 0; i < constants; ++i) {
      gradient_[i] = 0;
      for (std::size_t k = 0; k < errors_.size(); ++k) gradient_[i] -= slopes[i][k] * errors_[k];
      for (std::size_t j = 0; j < constants; ++j) {
        normal_[i][j] = 0;
        for (std::size_t k = 0; k < errors_.size(); ++k)
          normal_[i][j] += slopes[i][k] * slopes[j][k];
      }
    }
    // A constant at its limit that would leave it keeps its value.
    for (std::size_t i = 0; i < constants; ++i) {
      const bool fixed = (logs_[i] >= most_logs[i] && gradient_[i] > 0) ||
                         (logs_[i] <= least_logs[i] && gradient_[i] < 0);
      if (!fixed) continue;
      gradient_[i] = 0;
      for (std::size_t j = 0; j < constants; ++j) normal_[i][j] = normal_[j][i] = 0;
    }
  }

  bool try_step(double damping) {
    Square damped = normal_;
    for (std::size_t i = 0; i < constants; ++i) damped[i][i] *= 1 + damping;
    const Logs change = solve(damped, gradient_);
    Logs moved = logs_;
    for (std::size_t i = 0; i < constants; ++i)
      moved[i] =
          std::clamp(moved[i] + std::clamp(change[i], -1.0, 1.0), least_logs[i], most_logs[i]);
    Machine machine = machine_;
    set_logs(&machine, moved);
    std::vector<double> errors = soft_errors(machine, steps_);
    const double square = sum_of_squares(errors);
    if (!(square < square_)) return false;
    gain_ = square_ - square;
    square_ = square;
    logs_ = moved;
    errors_ = std::move(errors);
    machine_ = std::move(machine);
    return true;
  }

 public:
  const Machine& machine() const { return machine_; }

 private:
  Machine machine_;
  const std::vector<KnownStep>& steps_;
  Logs logs_;
  std::vector<double> errors_;
  double square_ = 0;
  double gain_ = 0;  // of the last step that was better
  Square normal_{};
  Logs gradient_{};
};

}  // namespace

double pipeline_seconds(const Machine& machine, const KnownStep& step) {
  const std::int64_t micro_batches = micro_batches_of(step.strategy, step.batch);
  const StrategyCosts costs = PlannedGpt(step.model, machine).costs(step.strategy, micro_batches);
  double once = 0, slowest = 0, update = 0;
  for (const auto& stage : costs.costs.stages) {
    once += stage.forward + stage.backward;
    slowest = std::max(slowest, stage.forward + stage.backward);
    update = std::max(update, stage.step);
  }
  for (const auto& route : costs.costs.routes) once += 2 * route.seconds;
  const auto n = static_cast<double>(micro_batches);
  const auto& first = costs.costs.stages.front();
  return once + (n - 1) * slowest + first.reduce + first.norm + update;
}

Machine profile_blocks(Machine machine, const std::vector<KnownStep>& steps) {
  std::vector<std::vector<KnownStep>> of_block(machine.blocks.size());
  for (const KnownStep& step : steps) {
    const auto same = [&step](const KnownBlock& block) {
      return block.hidden == step.model.hidden && block.heads == step.model.heads &&
             block.sequence == step.model.sequence &&
             block.micro_batch == step.strategy.micro_batch && block.tensor == step.strategy.tensor;
    };
    const auto found = std::find_if(machine.blocks.begin(), machine.blocks.end(), same);
    const auto place = static_cast<std::size_t>(found - machine.blocks.begin());
    if (found == machine.blocks.end()) {
      const double seconds =
          block_compute(step.model,
                        {.micro_batch = static_cast<double>(step.strategy.micro_batch),
                         .tensor = step.strategy.tensor},
                        machine);
      machine.blocks.push_back({.hidden = step.model.hidden,
                                .heads = step.model.heads,
                                .sequence = step.model.sequence,
                                .micro_batch = step.strategy.micro_batch,
                                .tensor = step.strategy.tensor,
                                .seconds = seconds,
                                .origin = Origin::Simulated,
                                .from = "fitted to known steps"});
      of_block.emplace_back();
    }
    of_block[place].push_back(step);
  }
  for (std::size_t i = 0; i < machine.blocks.size(); ++i) {
    if (of_block[i].empty()) continue;
    // A step's time rises with its block's, by a smaller factor: each round comes closer.
    constexpr int rounds = 100;
    for (int round = 0; round < rounds; ++round) {
      double error = 0;
      for (const double log : log_errors(machine, of_block[i])) error += log;
      machine.blocks[i].seconds *= std::exp(-error / static_cast<double>(of_block[i].size()));
      if (std::abs(error) < 1e-9) break;
    }
  }
  return machine;
}

Machine fit_times(Machine machine, const std::vector<KnownStep>& steps) {
  if (steps.size() < constants)
    throw UsageError(text("a fit of ", constants, " constants needs ", constants,
                          " known steps, got ", steps.size()));
  for (const KnownStep& step : steps)
    if (!(step.seconds > 0) || !std::isfinite(step.seconds))
      throw UsageError(text("a known step takes ", step.seconds, " s"),
                       {.hint = "Give a time above 0."});
  Fit fit(&machine, steps);
  fit.run();
  return fit.machine();
}

}  // namespace trestle::plan
