#pragma once

#include "tests/pipeline/conv_net.h"
#include "tests/pipeline/rank_plans.h"
#include "trestle/simulate/costs.h"

// Profiles of pipelines over ranks, and comparisons with one process's.
namespace trestle::ranks {

using simulate::StageCost;

inline constexpr Bytes StageCost::*all_bytes[] = {&StageCost::persistent,
                                                  &StageCost::gradients,
                                                  &StageCost::saved,
                                                  &StageCost::kept_for_recompute,
                                                  &StageCost::recompute_excess,
                                                  &StageCost::transient_forward,
                                                  &StageCost::transient_no_graph,
                                                  &StageCost::transient_recompute,
                                                  &StageCost::transient_backward,
                                                  &StageCost::transient_first_backward,
                                                  &StageCost::loss_transient,
                                                  &StageCost::loss_kept,
                                                  &StageCost::output_kept};
inline constexpr double StageCost::*all_times[] = {
    &StageCost::forward,     &StageCost::backward,  &StageCost::input_grad,
    &StageCost::weight_grad, &StageCost::recompute, &StageCost::forward_no_graph};

inline int first_of(const RankPlan& plan) {
  return plan.rank_of_stage.empty() ? 0 : plan.rank_of_stage.front();
}
inline int last_of(const RankPlan& plan) {
  return plan.rank_of_stage.empty() ? plan.ranks() - 1 : plan.rank_of_stage.back();
}
inline Device device_of(const World& world) {
  return virtual_devices(4)[static_cast<std::size_t>(world.rank())];
}

inline PipelineOptions rank_options(const RankPlan& plan, const World& world) {
  PipelineOptions options = options_of(plan);
  options.group = world.group();
  options.deadline = std::chrono::seconds(20);
  if (plan.on == On::Virtual) options.devices = {device_of(world)};
  return options;
}

struct Given {
  at::Tensor input, target;
};
inline Given given_to(const Net& net, const RankPlan& plan, const World& world) {
  return {world.rank() == first_of(plan) ? net.input : at::Tensor(),
          world.rank() == last_of(plan) ? net.target : at::Tensor()};
}

// Profiles after `steps` steps: a stage learns in its first run which values it need not copy.
inline simulate::Costs measured_alone(const Net& net, const RankPlan& plan, const nn::Loss& loss,
                                      int steps = 0) {
  PipelineOptions options = options_of(plan);
  const auto devices = virtual_devices(4);
  for (std::size_t s = 0; s < plan.balance.size(); ++s)
    options.devices.push_back(plan.on == On::Cpu
                                  ? cpu_device()
                                  : devices[plan.rank_of_stage.empty()
                                                ? s
                                                : static_cast<std::size_t>(plan.rank_of_stage[s])]);
  nn::Layers model = net.make();
  Pipeline pipeline(model, options);
  for (int step = 0; step < steps; ++step) pipeline.step(net.input, net.target, loss);
  pipeline.zero_grad();
  return pipeline.profile({net.input}, net.target, loss);
}

inline void expect_same_bytes(const simulate::Costs& alone, const simulate::Costs& ranks) {
  ASSERT_EQ(alone.stages.size(), ranks.stages.size());
  for (std::size_t s = 0; s < alone.stages.size(); ++s) {
    for (std::size_t i = 0; i < std::size(all_bytes); ++i)
      EXPECT_EQ(alone.stages[s].*all_bytes[i], ranks.stages[s].*all_bytes[i])
          << "stage " << s << ", number " << i;
    for (const auto time : all_times) EXPECT_GT(ranks.stages[s].*time, 0) << "stage " << s;
  }
  ASSERT_EQ(alone.routes.size(), ranks.routes.size());
  for (std::size_t r = 0; r < alone.routes.size(); ++r) {
    EXPECT_EQ(alone.routes[r].bytes, ranks.routes[r].bytes) << "route " << r;
    EXPECT_EQ(alone.routes[r].saved, ranks.routes[r].saved) << "route " << r;
    EXPECT_EQ(alone.routes[r].activation_excess, ranks.routes[r].activation_excess) << r;
  }
  EXPECT_EQ(alone.gradients_at_start, ranks.gradients_at_start);
}

}  // namespace trestle::ranks
