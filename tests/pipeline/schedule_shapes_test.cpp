// Shapes that change under every schedule, from step to step and between micro-batches: the
// gradients equal those of the plain model.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/pipeline/gradient_nets.h"
#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual_device.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/schedule/generate.h"

namespace trestle {
namespace {

using support::Net;

constexpr int parts = 4;  // the micro-batches
constexpr std::int64_t columns = 6;

// The function calls `check` with options for a net of eight layers: every schedule on two ranks
// with every recompute mode, in one thread and on virtual devices in turn.
template <class Check>
void for_every_schedule(const Check& check) {
  int turn = 0;
  for (const auto& known : schedule::known_schedules()) {
    const int each = schedule::stages_per_rank(known.name, 0);
    const std::vector<int> balance =
        each == 1 ? std::vector<int>{2, 6} : std::vector<int>{2, 2, 2, 2};
    for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
      const bool in_threads = ++turn % 2 == 0;
      SCOPED_TRACE(text(known.name, ", recompute ", schedule::to_string(recompute),
                        in_threads ? ", virtual devices" : ", cpu"));
      const PipelineOptions options{
          .devices = in_threads ? virtual_devices(2) : std::vector<Device>{cpu_device()},
          .balance = balance,
          .micro_batches = parts,
          .schedule = known.name,
          .stages_per_rank = each,
          .recompute = recompute};
      check(options);
    }
  }
}

// The net takes samples of any number of rows.
nn::Layers net_of_rows() {
  const auto linear = [] {
    torch::nn::Linear layer(columns, columns);
    layer->to(at::kDouble);
    return layer;
  };
  nn::Layers net(nn::Seed{13});
  net.add("linear0", linear);
  net.add("tanh0", [](at::Tensor x) { return x.tanh(); }).keep_output("skip");
  net.add("linear1", linear);
  net.add("centre", [](at::Tensor x) { return x - x.mean(1, true); });
  net.add("linear2", linear);
  net.add("tanh2", [](at::Tensor x) { return x.tanh(); });
  net.add("join", [](at::Tensor x, at::Tensor skip) { return x + skip * skip; }).take("skip");
  net.add("linear3", linear);
  return net;
}

struct RowsBatch {
  at::Tensor x, y;
  oracle::Outcome expected;
};

TEST(ScheduleShapes, ChangeFromStepToStep) {
  const support::WatchDog watch("changing shapes");
  const nn::Loss loss = nn::mean_squared_error();
  std::vector<RowsBatch> batches;
  for (const auto& [samples, rows] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{8, 5}, {8, 8}, {7, 8}, {8, 5}}) {
    const at::Tensor x = golden::formula_input({samples, rows, columns}).to(at::kDouble);
    const at::Tensor y = x.flip(0).cos();
    batches.push_back({x, y, oracle::looped(net_of_rows(), x, y, loss, parts)});
  }
  for_every_schedule([&](const PipelineOptions& options) {
    const nn::Layers net = net_of_rows();
    Pipeline pipeline(net, options);
    for (const RowsBatch& batch : batches) {
      SCOPED_TRACE(text(batch.x.size(0), " samples of ", batch.x.size(1), " rows"));
      pipeline.zero_grad();
      const auto result = pipeline.step(batch.x, batch.y, loss);
      oracle::expect_same(batch.expected, oracle::collect(net, result.loss, {}, batch.x));
      EXPECT_EQ(result.micro_batches, parts);
    }
  });
}

// A value that is None in some micro-batches has no gradient there.
TEST(ScheduleShapes, MayBeNoneInSomeMicroBatches) {
  const support::WatchDog watch("None in some micro-batches");
  const Net net = support::sometimes_none();
  const auto expected = oracle::looped(net.make(), net.input, net.target, net.loss, parts);
  for_every_schedule([&](const PipelineOptions& options) {
    const nn::Layers model = net.make();
    Pipeline pipeline(model, options);
    const auto result = pipeline.step(net.input, net.target, net.loss);
    oracle::expect_same(expected, oracle::collect(model, result.loss, {}, net.input));
  });
}

}  // namespace
}  // namespace trestle
