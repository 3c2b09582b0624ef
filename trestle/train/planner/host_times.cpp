#include "trestle/train/planner/host_times.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/device/threads.h"
#include "trestle/optim/factory.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/message_times.h"
#include "trestle/train/optimizers/recipe_optimizers.h"

namespace trestle::train {

namespace {

constexpr Bytes measured_bytes = Bytes{4} << 20;
constexpr int optimizer_rounds = 4;  // the first one makes the state

double optimizer_seconds_per_byte(const recipe::Recipe& recipe) {
  at::Tensor parameter = at::zeros({static_cast<std::int64_t>(measured_bytes / sizeof(float))})
                             .set_requires_grad(true);
  parameter.mutable_grad() = at::ones_like(parameter);
  const auto optimizer = optim::make_optimizer({parameter}, optimizer_options(recipe));
  double best = 0;
  for (int round = 0; round < optimizer_rounds; ++round) {
    const Stopwatch watch;
    optimizer->step();
    if (round > 0) best = round == 1 ? watch.seconds() : std::min(best, watch.seconds());
  }
  return best / static_cast<double>(measured_bytes);
}

// The optimizer's name in a machine file.
std::string name_in_file(const recipe::Recipe& recipe) {
  const bool momentum = recipe.optimizer.name == "sgd" && recipe.optimizer.momentum > 0;
  return momentum ? "sgd_momentum" : recipe.optimizer.name;
}

// The tables inside one machine over the first of these transports that has any.
std::vector<plan::MessageTable> counted_tables(const plan::Machine& machine) {
  for (const char* over : {"nccl", "gloo", "threads"}) {
    std::vector<plan::MessageTable> tables;
    for (const plan::MessageTable& table : machine.messages)
      if (table.over == over && table.reach == plan::Reach::Inside) tables.push_back(table);
    if (!tables.empty()) return tables;
  }
  return {};
}

// The slowest rank counts.
void set_messages(const std::vector<MessageCost>& measured, HostTimes* times) {
  for (const MessageCost& one : measured) {
    times->replicas.seconds = std::max(times->replicas.seconds, one.seconds);
    times->replicas.seconds_per_byte =
        std::max(times->replicas.seconds_per_byte, one.seconds_per_byte);
  }
  times->tensor = times->stages = times->replicas;
}

// Forward and backward of a convolution and an activation, or of a projection and an activation,
// with a working set of some MiB: one that the second-level cache of a core does not hold.
class LayerSample {
 public:
  explicit LayerSample(const recipe::Recipe& recipe) : dense_(is_transformer(recipe)) {
    inputs_ = (dense_ ? at::ones({256, 512}) : at::ones({2, 16, 96, 96})).set_requires_grad(true);
    weights_ = (dense_ ? at::ones({1024, 512}) : at::ones({32, 16, 3, 3})).set_requires_grad(true);
  }

  double seconds() const {
    const Stopwatch watch;
    const at::Tensor outputs = dense_ ? at::gelu(at::linear(inputs_, weights_))
                                      : at::relu(at::conv2d(inputs_, weights_, {}, 1, 1));
    (void)torch::autograd::grad({outputs.sum()}, {inputs_, weights_});
    return watch.seconds();
  }

 private:
  bool dense_;
  at::Tensor inputs_, weights_;
};

// How many times as long a layer takes while `cores` threads run it as on one thread alone. Rounds
// of both take turns, and the fastest of each counts, so that other load falls on both alike.
double core_slowdown(const recipe::Recipe& recipe, int cores) {
  if (cores < 2) return 1;
  constexpr int rounds = 6;  // the first one warms up
  double alone = 0, together = 0;
  const auto keep_least = [](int round, double seconds, double* least) {
    if (round > 0) *least = round == 1 ? seconds : std::min(*least, seconds);
  };
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> seconds(static_cast<std::size_t>(cores));
    const auto run = [&](int threads) {
      std::barrier begin(threads);
      std::vector<std::jthread> running;
      for (int i = 0; i < threads; ++i)
        running.emplace_back([&, i] {
          set_own_threads(1);
          const LayerSample sample(recipe);
          begin.arrive_and_wait();
          seconds[static_cast<std::size_t>(i)] = sample.seconds();
        });
      running.clear();
      return *std::max_element(seconds.begin(), seconds.begin() + threads);
    };
    keep_least(round, run(1), &alone);
    keep_least(round, run(cores), &together);
  }
  return std::clamp(together / alone, 1.0, static_cast<double>(cores));
}

double ranks_per_core(int ranks, int cores) {
  return cores > 0 ? std::max(1.0, static_cast<double>(ranks) / cores) : 1;
}

// The same messages of one rank that shares its core with none.
MessageCost alone_on_core(MessageCost cost, double shared_by) {
  cost.seconds /= shared_by;
  cost.seconds_per_byte /= shared_by;
  return cost;
}

}  // namespace

HostTimes host_times_of(const plan::Machine& machine, const recipe::Recipe& recipe,
                        const CountedRanks& counted, const std::string& file) {
  HostTimes times;
  const auto [ranks, cores] = counted;
  if (cores > 0) {
    times.cores = cores;
    times.slowdown = core_slowdown(recipe, std::min(cores, ranks));
  }
  const std::string name = name_in_file(recipe);
  for (const plan::OptimizerTime& one : machine.optimizers)
    if (one.name == name) times.optimizer_seconds_per_byte = one.seconds_per_byte.value;
  const std::string hint =
      "trestle calibrate --out FILE measures this machine. Without --machine a recipe's messages "
      "are measured for the plan alone.";
  if (times.optimizer_seconds_per_byte == 0)
    throw UsageError(text(file, ": has no '", name, "' in [optimizer], the recipe's optimizer"),
                     {.hint = hint});
  if (ranks < 2) return times;
  times.tables = counted_tables(machine);
  for (plan::MessageTable& table : times.tables)
    for (double& seconds : table.seconds) seconds /= ranks_per_core(table.ranks, cores);
  for (const plan::Exchange kind : {plan::Exchange::AllReduce, plan::Exchange::AllGather,
                                    plan::Exchange::ReduceScatter, plan::Exchange::Send})
    if (std::none_of(times.tables.begin(), times.tables.end(),
                     [&](const plan::MessageTable& table) { return table.kind == kind; }))
      throw UsageError(text(file, ": has no table [[message]] with kind = \"", to_string(kind),
                            "\" and reach = \"inside\""),
                       {.hint = hint});
  return times;
}

std::string words_of_host_times(const plan::Machine& machine, const HostTimes& times,
                                const std::string& file) {
  return text(
      "Messages and the optimizer are those of ", file,
      times.tables.empty() ? std::string() : text(", over ", times.tables.front().over),
      machine.measured_on ? text(", measured on ", machine.measured_on->date) : std::string(), ".");
}

HostTimes measure_host_times(const recipe::Recipe& recipe, int planned_ranks, int cores) {
  constexpr int most_timed_ranks = 8;
  const int ranks = std::min(planned_ranks, most_timed_ranks);
  HostTimes times;
  if (cores > 0) {
    times.cores = cores;
    times.slowdown = core_slowdown(recipe, std::min(cores, ranks));
  }
  times.optimizer_seconds_per_byte = optimizer_seconds_per_byte(recipe);
  if (ranks < 2) return times;
  set_messages(
      spawn(ranks,
            [](World& world) { return time_messages(world.group(), at::kCPU, measured_bytes); }),
      &times);
  if (cores > 0)
    times.replicas = times.tensor = times.stages =
        alone_on_core(times.replicas, ranks_per_core(ranks, cores));
  return times;
}

HostTimes measure_host_times(const recipe::Recipe& recipe, const RunRanks& ranks) {
  if (ranks.alone()) return measure_host_times(recipe, 1, 0);
  if (planned_devices(recipe.devices.use).at(0).torch.is_cuda())
    return ranks.reports() ? measure_host_times(recipe, ranks.size(), 0) : HostTimes();
  HostTimes times;
  times.optimizer_seconds_per_byte = optimizer_seconds_per_byte(recipe);
  const MessageCost own = time_messages(ranks.group(), at::kCPU, measured_bytes);
  std::vector<MessageCost> all;
  for (const auto& one : ranks.gather(std::vector<double>{own.seconds, own.seconds_per_byte}))
    all.push_back({.seconds = one.at(0), .seconds_per_byte = one.at(1)});
  set_messages(all, &times);
  return times;
}

}  // namespace trestle::train
