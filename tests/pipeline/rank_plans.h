#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/pipeline/gradient_nets.h"
#include "tests/pipeline/support.h"
#include "trestle/base/text.h"
#include "trestle/comm/world.h"
#include "trestle/device/virtual_device.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/schedule/placement.h"

// Plans of pipelines over ranks, and comparisons of a rank's outcome with one process's.
namespace trestle::ranks {

using support::Net;

enum class Use { Step, CallersBackward };
enum class On { Cpu, Virtual };
constexpr int most_ranks = 8;  // with virtual devices

struct RankPlan {
  std::vector<int> balance;
  int micro_batches = 4;
  std::string schedule = "gpipe";
  std::vector<int> rank_of_stage = {};  // empty: one stage per rank
  Recompute recompute = Recompute::Never;
  Use use = Use::Step;
  On on = On::Cpu;
  int stages_per_rank = 0;  // with rank_of_stage: that of the schedule; 0: a table of GPipe

  int ranks() const {
    return rank_of_stage.empty()
               ? static_cast<int>(balance.size())
               : *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  }
};

inline std::string name_of(const Net& net, const RankPlan& plan) {
  return text(net.name, ", balance ", join(plan.balance, "-"), ", ranks of stages ",
              join(plan.rank_of_stage, "-"), ", ", plan.schedule, ", ", plan.micro_batches,
              " micro-batches, recompute ", schedule::to_string(plan.recompute), ", use ",
              static_cast<int>(plan.use), plan.on == On::Cpu ? ", cpu" : ", virtual");
}

// A plan of a schedule with several stages on a rank.
inline RankPlan plan_of(const std::string& schedule, const std::vector<int>& balance, int ranks,
                        int micro_batches) {
  const int each = static_cast<int>(balance.size()) / ranks;
  return {
      .balance = balance,
      .micro_batches = micro_batches,
      .schedule = schedule,
      .rank_of_stage = schedule::ranks_of_stages(schedule, static_cast<int>(balance.size()), each),
      .stages_per_rank = each};
}

// GPipe also runs losses of the whole batch.
inline const nn::Loss& loss_of(const Net& net, const RankPlan& plan) {
  return plan.schedule == "gpipe" ? net.loss : net.one_f_one_b_loss;
}

inline PipelineOptions options_of(const RankPlan& plan) {
  PipelineOptions options{.balance = plan.balance,
                          .micro_batches = plan.micro_batches,
                          .schedule = plan.schedule,
                          .recompute = plan.recompute,
                          .numerics = {.seed = 7}};
  options.stages_per_rank = plan.stages_per_rank;
  if (!plan.rank_of_stage.empty() && plan.stages_per_rank == 0) {
    const int stages = static_cast<int>(plan.balance.size());
    options.plan.table = schedule::place(
        schedule::generate("gpipe", {.stages = stages, .micro_batches = plan.micro_batches}),
        plan.rank_of_stage, plan.ranks());
  }
  return options;
}

struct Outcome {
  double loss = 0;
  double weight = 0;
  std::map<std::string, at::Tensor> gradients, buffers;
  at::Tensor output, input_gradient;
};

inline Outcome collect(const Pipeline& pipeline, double loss, const at::Tensor& output,
                       const at::Tensor& input) {
  return {.loss = loss,
          .gradients = oracle::gradients_of(pipeline.named_parameters()),
          .buffers = oracle::to_map(pipeline.named_buffers()),
          .output = output.defined() ? output.detach().cpu() : output,
          .input_gradient = input.defined() && input.grad().defined() ? input.grad().cpu().clone()
                                                                      : at::Tensor()};
}

// Runs on one process or one rank. Only the first rank reads the input, only the last the target.
inline Outcome run(const Net& net, const RankPlan& plan, const PipelineOptions& options, bool first,
                   bool last) {
  nn::Layers model = net.make();
  Pipeline pipeline(model, options);
  at::Tensor input;
  if (first) input = net.input.clone().set_requires_grad(plan.use == Use::CallersBackward);
  if (plan.use == Use::Step) {
    const auto result = pipeline.step(input, last ? net.target : at::Tensor(), loss_of(net, plan),
                                      {.output = StepOptions::Output::Keep});
    Outcome outcome = collect(pipeline, result.loss, result.output, input);
    outcome.weight = result.weight;
    return outcome;
  }
  const at::Tensor output = pipeline.forward(input);
  EXPECT_EQ(output.defined(), last);
  if (!last) {
    pipeline.backward();
    return collect(pipeline, 0, output, input);
  }
  const at::Tensor loss = net.loss.value(output, net.target.to(output.device()));
  pipeline.backward(loss);
  return collect(pipeline, loss.item<double>(), output, input);
}

inline Outcome in_one_process(const Net& net, const RankPlan& plan) {
  PipelineOptions options = options_of(plan);
  if (plan.on == On::Virtual) {
    const auto devices = virtual_devices(most_ranks);
    for (std::size_t s = 0; s < plan.balance.size(); ++s)
      options.devices.push_back(devices.at(
          plan.rank_of_stage.empty() ? s : static_cast<std::size_t>(plan.rank_of_stage[s])));
  }
  return run(net, plan, options, true, true);
}

inline Outcome on_rank(const Net& net, const RankPlan& plan, const World& world) {
  PipelineOptions options = options_of(plan);
  options.group = world.group();
  options.deadline = std::chrono::seconds(20);
  if (plan.on == On::Virtual)
    options.devices = {virtual_devices(most_ranks).at(static_cast<std::size_t>(world.rank()))};
  const int first = plan.rank_of_stage.empty() ? 0 : plan.rank_of_stage.front();
  const int last = plan.rank_of_stage.empty() ? world.size() - 1 : plan.rank_of_stage.back();
  return run(net, plan, options, world.rank() == first, world.rank() == last);
}

inline void expect_same_bits(const std::map<std::string, at::Tensor>& expected,
                             const std::map<std::string, at::Tensor>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    ASSERT_EQ(tensor.defined(), found->second.defined()) << name;
    if (tensor.defined()) {
      EXPECT_TRUE(at::equal(tensor, found->second)) << name;
    }
  }
}

}  // namespace trestle::ranks
