// The tensors of a skip: sent once each way, directly to the rank that uses them, and not copied if
// both ends are on one device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/support.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/run_key.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/schedule/generate.h"

namespace trestle {
namespace {

constexpr std::int64_t skip_rows = 3;  // of a micro-batch
constexpr int skip_micro_batches = 8, skip_steps = 2;
constexpr std::int64_t main_width = 4, skip_width = 3 * main_width;

// A pipeline of `ranks`, and the stages between which a skip goes.
struct SkipPlan {
  std::string schedule;
  int ranks = 4;
  int from = 0;
  int to = 0;
  Recompute recompute = Recompute::Never;

  int stages() const { return ranks * schedule::stages_per_rank(schedule, 0); }
  std::vector<int> rank_of_stage() const {
    return schedule::ranks_of_stages(schedule, stages(), stages() / ranks);
  }
  std::string describe() const {
    return text(schedule, ", skip ", from, " to ", to, ", recompute ",
                schedule::to_string(recompute));
  }
};

// The address of a tensor's memory, by the first example of its micro-batch.
class Addresses {
 public:
  void add(std::int64_t example, const at::Tensor& tensor) {
    const std::scoped_lock lock(mutex_);
    of_[example] = tensor.const_data_ptr();
  }
  std::map<std::int64_t, const void*> all() const {
    const std::scoped_lock lock(mutex_);
    return of_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, const void*> of_;
};

// At both ends of the skip.
struct Ends {
  Addresses made, used, gradient_made, gradient_used;
};

void watch_gradient(const at::Tensor& tensor, std::int64_t example, Addresses& into) {
  if (tensor.requires_grad())
    tensor.register_hook(
        [example, &into](const at::Tensor& gradient) { into.add(example, gradient); });
}

// One linear layer for each stage. The skip leaves at the end of a stage, and is used at the begin
// of another one.
nn::Layers net_with_skip(const SkipPlan& plan, Ends& ends) {
  nn::Layers net(nn::Seed{5});
  for (int stage = 0; stage < plan.stages(); ++stage) {
    if (stage == plan.to)
      net.add("use",
              [&ends](at::Tensor x, at::Tensor skip) {
                const std::int64_t example = nn::LayerRun::place()->example;
                ends.used.add(example, skip);
                watch_gradient(skip, example, ends.gradient_made);
                return x + skip.tanh().view({-1, 3, main_width}).sum(1);
              })
          .take("skip");
    net.add(text("linear", stage), [] {
      torch::nn::Linear linear(main_width, main_width);
      linear->to(at::kDouble);
      return linear;
    });
    if (stage == plan.from)
      net.add("make",
              [&ends](at::Tensor x) {
                const std::int64_t example = nn::LayerRun::place()->example;
                const at::Tensor skip = x.repeat({1, 3});
                ends.made.add(example, skip);
                watch_gradient(skip, example, ends.gradient_used);
                return std::tuple(x * 2, skip);
              })
          .keep_output("skip", 1);
  }
  return net;
}

PipelineOptions skip_options(const SkipPlan& plan) {
  PipelineOptions options{.balance = std::vector<int>(static_cast<std::size_t>(plan.stages()), 1),
                          .micro_batches = skip_micro_batches,
                          .schedule = plan.schedule,
                          .stages_per_rank = plan.stages() / plan.ranks,
                          .recompute = plan.recompute};
  ++options.balance.at(static_cast<std::size_t>(plan.from));
  ++options.balance.at(static_cast<std::size_t>(plan.to));
  return options;
}

// The first step finds out which layers write to their inputs, with copies. The second one replaces
// its addresses.
void train_twice(Pipeline& pipeline, bool first = true, bool last = true) {
  const at::Tensor x =
      torch::linspace(-1, 1, skip_micro_batches * skip_rows * main_width, at::kDouble)
          .view({skip_micro_batches * skip_rows, main_width});
  for (int step = 0; step < skip_steps; ++step)
    pipeline.step(first ? x : at::Tensor(), last ? x.flip(0) : at::Tensor(),
                  nn::mean_squared_error());
}

void expect_no_copy(const Ends& ends) {
  const auto made = ends.made.all(), gradients = ends.gradient_made.all();
  EXPECT_EQ(made.size(), static_cast<std::size_t>(skip_micro_batches));
  EXPECT_EQ(gradients.size(), made.size());
  EXPECT_EQ(made, ends.used.all());
  EXPECT_EQ(gradients, ends.gradient_used.all());
}

// [rank] by the placement alone: each value leaves the rank that makes it once, and its gradient
// the rank that uses it.
std::vector<Bytes> expected_bytes(const SkipPlan& plan) {
  std::vector<Bytes> sent(static_cast<std::size_t>(plan.ranks), 0);
  const std::vector<int> rank_of_stage = plan.rank_of_stage();
  const auto cross = [&](int from, int to, std::int64_t width) {
    const auto maker = static_cast<std::size_t>(rank_of_stage.at(static_cast<std::size_t>(from)));
    const auto user = static_cast<std::size_t>(rank_of_stage.at(static_cast<std::size_t>(to)));
    if (maker == user) return;
    const Bytes bytes = skip_steps * skip_micro_batches * skip_rows * width * 8;
    sent.at(maker) += bytes;
    sent.at(user) += bytes;
  };
  for (int stage = 0; stage + 1 < plan.stages(); ++stage) cross(stage, stage + 1, main_width);
  cross(plan.from, plan.to, skip_width);
  return sent;
}

// In a loop the stages r and r + 4 are on rank r, and in a V the stages r and 7 - r.
const std::vector<SkipPlan>& skip_plans() {
  static const std::vector<SkipPlan> plans = {
      {.schedule = "gpipe", .to = 3},
      {.schedule = "1f1b", .to = 2},
      {.schedule = "1f1b", .from = 1, .to = 3, .recompute = Recompute::Always},
      {.schedule = "model_parallel", .from = 1, .to = 3},
      {.schedule = "zb_h1", .to = 3},
      {.schedule = "zb_h2", .to = 3},
      {.schedule = "zb_h2", .from = 1, .to = 3, .recompute = Recompute::Always},
      {.schedule = "looped_bfs", .to = 6},
      {.schedule = "looped_bfs", .from = 1, .to = 5},
      {.schedule = "interleaved_1f1b", .to = 6},
      {.schedule = "interleaved_1f1b", .from = 1, .to = 5},
      {.schedule = "interleaved_zero_bubble", .from = 2, .to = 7, .recompute = Recompute::Always},
      {.schedule = "zbv", .to = 5},
      {.schedule = "zbv", .to = 7},
      {.schedule = "zbv", .from = 1, .to = 6, .recompute = Recompute::Always},
      {.schedule = "dualpipev", .from = 2, .to = 6},
      {.schedule = "v_half", .to = 5},
      {.schedule = "v_half", .from = 1, .to = 6},
      {.schedule = "v_min", .to = 7},
      {.schedule = "v_min", .from = 2, .to = 6, .recompute = Recompute::Always},
  };
  return plans;
}

TEST(Skips, CrossOnceEachWayBetweenRanks) {
  const support::WatchDog watch("bytes of skips");
  for (const SkipPlan& plan : skip_plans()) {
    SCOPED_TRACE(plan.describe());
    const std::vector<int> rank_of_stage = plan.rank_of_stage();
    Ends ends;
    const auto sent = spawn(plan.ranks, [&](World& world) {
      Pipeline pipeline(net_with_skip(plan, ends), support::over(world, skip_options(plan)));
      train_twice(pipeline, world.rank() == rank_of_stage.front(),
                  world.rank() == rank_of_stage.back());
      return pipeline.bytes_sent();
    });
    EXPECT_EQ(sent, expected_bytes(plan));
    if (rank_of_stage.at(static_cast<std::size_t>(plan.from)) !=
        rank_of_stage.at(static_cast<std::size_t>(plan.to)))
      continue;
    if (plan.recompute == Recompute::Never) expect_no_copy(ends);
  }
}

TEST(Skips, AreNotCopiedOnOneDevice) {
  const support::WatchDog watch("copies of skips");
  for (const Device& device : {cpu_device(), virtual_devices(4)[0]})
    for (const SkipPlan& plan : skip_plans()) {
      if (plan.recompute != Recompute::Never) continue;
      SCOPED_TRACE(text(plan.describe(), " on ", device.torch.str()));
      Ends ends;
      PipelineOptions options = skip_options(plan);
      options.devices = {device};
      Pipeline pipeline(net_with_skip(plan, ends), options);
      train_twice(pipeline);
      expect_no_copy(ends);
    }
}

}  // namespace
}  // namespace trestle
