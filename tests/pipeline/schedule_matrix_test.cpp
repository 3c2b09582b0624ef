// The invariant for every schedule by name, with several stages on a rank and with split backwards:
// the loss and every gradient equal those of the unsplit model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tests/pipeline/gradient_nets.h"
#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/schedule/generate.h"

namespace another_library {
// A function of another library: nothing says which of its gradients it computes when.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const auto saved = context->get_saved_variables();
    return {given[0].mm(saved[1].t()), saved[0].t().mm(given[0])};
  }
};
}  // namespace another_library

namespace trestle {
namespace {

using support::even_balance;
using support::message_of;
using support::Net;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct TableSize {
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;
};

bool takes(const std::string& schedule, const TableSize& size) {
  try {
    schedule::generate(schedule, {.stages = size.ranks * size.stages_per_rank,
                                  .micro_batches = size.micro_batches,
                                  .stages_per_rank = size.stages_per_rank});
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

struct Grid {
  std::vector<int> ranks = {1, 2, 3, 5};
  std::vector<int> stages_per_rank = {1, 2, 3};
  std::vector<int> micro_batches = {1, 2, 4, 6, 10};
};

// The whole grid instead of a covering part, with a line for each case:
//   TRESTLE_WHOLE_MATRIX=1 pipeline_test --gtest_filter='*ScheduleMatrix*:*RunsEverySchedule'
bool whole_matrix() { return std::getenv("TRESTLE_WHOLE_MATRIX") != nullptr; }

// The sizes of a grid that a schedule takes.
std::vector<TableSize> sizes_of(const std::string& schedule, int layers, const Grid& grid) {
  std::vector<TableSize> sizes;
  for (const int ranks : grid.ranks)
    for (const int each : grid.stages_per_rank)
      for (const int micro_batches : grid.micro_batches)
        if (const TableSize size{ranks, each, micro_batches};
            ranks * each <= layers && takes(schedule, size))
          sizes.push_back(size);
  return sizes;
}

std::string matrix_name(const std::string& schedule, const TableSize& size) {
  return text(schedule, ", ", size.ranks, " ranks of ", size.stages_per_rank, " stages, ",
              size.micro_batches, " micro-batches");
}

PipelineOptions options_of(const std::string& schedule, const TableSize& size, int layers,
                           std::vector<Device> devices, Recompute recompute) {
  return {.devices = std::move(devices),
          .balance = even_balance(layers, size.ranks * size.stages_per_rank),
          .micro_batches = size.micro_batches,
          .schedule = schedule,
          .stages_per_rank = size.stages_per_rank,
          .recompute = recompute,
          .numerics = {.seed = 7}};
}

oracle::Outcome run(const Net& net, const PipelineOptions& options) {
  nn::Layers model = net.make();
  Pipeline pipeline(model, options);
  const at::Tensor input = net.input;
  const StepResult result =
      pipeline.step(input, net.target, net.one_f_one_b_loss, {.output = StepOptions::Output::Keep});
  return oracle::collect(model, result.loss, result.output, input);
}

// Each size with one recompute mode, in one thread and on virtual devices in turn; in the whole
// matrix with all modes in both.
void check(const Net& net, const std::string& schedule, const Grid& grid) {
  constexpr Recompute modes[] = {Recompute::Never, Recompute::ExceptLast, Recompute::Always};
  const int layers = static_cast<int>(net.make().size());
  const auto sizes = sizes_of(schedule, layers, grid);
  ASSERT_GE(sizes.size(), 1U) << schedule;
  std::map<int, oracle::Outcome> expected;  // by micro-batches
  int turn = 0;
  for (const TableSize& size : sizes) {
    if (!expected.contains(size.micro_batches))
      expected[size.micro_batches] = oracle::looped(net.make(), net.input, net.target,
                                                    net.one_f_one_b_loss, size.micro_batches, 7, 0);
    const auto check_one = [&](Recompute mode, bool in_threads) {
      const std::string name =
          text(net.name, ", ", matrix_name(schedule, size), ", recompute ",
               schedule::to_string(mode), in_threads ? ", virtual devices" : ", cpu");
      SCOPED_TRACE(name);
      const auto devices =
          in_threads ? virtual_devices(size.ranks) : std::vector<Device>{cpu_device()};
      oracle::expect_same(expected[size.micro_batches],
                          run(net, options_of(schedule, size, layers, devices, mode)));
      if (whole_matrix())
        std::cout << name << (::testing::Test::HasFailure() ? " failed" : " passed") << std::endl;
    };
    if (whole_matrix()) {
      for (const Recompute mode : modes)
        for (const bool in_threads : {false, true}) check_one(mode, in_threads);
      continue;
    }
    const Recompute mode = modes[turn++ % 3];
    check_one(mode, turn % 2 == 0 && size.ranks <= 4);
  }
}

class ScheduleMatrix : public ::testing::TestWithParam<std::string> {};

TEST_P(ScheduleMatrix, ToyWithFanOutSkipsAndDropout) {
  Grid grid;
  if (whole_matrix())
    grid = {.ranks = {1, 2, 3, 4, 5, 8},
            .stages_per_rank = {1, 2, 3, 4},
            .micro_batches = {1, 2, 3, 4, 5, 6, 8, 10, 12}};
  check(support::toy(0.3), GetParam(), grid);
}
// A batch norm needs two examples of the 13 in each micro-batch.
TEST_P(ScheduleMatrix, NarrowUNetWithLongSkips) {
  Grid grid{.ranks = {3}, .micro_batches = {1, 2, 4, 6}};
  if (whole_matrix()) grid = {.ranks = {1, 2, 3, 4, 5}, .micro_batches = {1, 2, 3, 4, 5, 6}};
  check(support::narrow_unet(), GetParam(), grid);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& known : schedule::known_schedules()) all.push_back(known.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, ScheduleMatrix, ::testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

TEST(ScheduleSizes, HaveDefaults) {
  const nn::Layers net = support::toy(0).make();
  const auto stages = [&](const std::string& schedule, int micro_batches) {
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .micro_batches = micro_batches,
                            .schedule = schedule,
                            .plan = {.sample = {support::toy(0).input}}});
    return pipeline.stage_count();
  };
  EXPECT_EQ(stages("1f1b", 4), 2);
  EXPECT_EQ(stages("zb_h1", 4), 2);
  EXPECT_EQ(stages("interleaved_1f1b", 4), 4);
  EXPECT_EQ(stages("zbv", 4), 4);
}

TEST(ScheduleSizes, NameTheNearestLegalOnes) {
  const auto message = [](const PipelineOptions& options) {
    return message_of<UsageError>([&] { Pipeline(support::toy(0).make(), options); });
  };
  EXPECT_THAT(message({.devices = virtual_devices(2),
                       .balance = {4, 3, 3},
                       .micro_batches = 4,
                       .schedule = "interleaved_1f1b"}),
              AllOf(HasSubstr("3 stages, 2 on each rank"), HasSubstr("Give 2 or 4 stages")));
  EXPECT_THAT(message({.devices = virtual_devices(2),
                       .balance = {3, 2, 3, 2},
                       .micro_batches = 5,
                       .schedule = "interleaved_1f1b"}),
              AllOf(HasSubstr("5 micro-batches"), HasSubstr("4 or 6")));
  EXPECT_THAT(message({.devices = virtual_devices(2),
                       .balance = {5, 5},
                       .micro_batches = 4,
                       .schedule = "zb_h1",
                       .stages_per_rank = 2}),
              AllOf(HasSubstr("zb_h1"), HasSubstr("2 stages per rank"), HasSubstr("It has 1")));
  EXPECT_THAT(message({.devices = virtual_devices(3),
                       .balance = {3, 2, 3, 2},
                       .micro_batches = 4,
                       .schedule = "zbv"}),
              AllOf(HasSubstr("4 stages, but 3 devices"), HasSubstr("one for each rank of 2")));
  // One rank would run both stages, on two devices one after the other.
  EXPECT_THAT(message({.devices = virtual_devices(2),
                       .balance = {5, 5},
                       .micro_batches = 4,
                       .schedule = "zbv"}),
              AllOf(HasSubstr("stages 0 and 1 of rank 0 are on virtual:0 and virtual:1"),
                    HasSubstr("the balance has 4 stages")));
  EXPECT_THAT(message({.balance = {5, 5}, .stages_per_rank = -1}), HasSubstr("is negative"));
}

struct OtherLayerImpl : torch::nn::Module {
  OtherLayerImpl() { weight = register_parameter("weight", torch::eye(4)); }
  at::Tensor forward(const at::Tensor& x) { return another_library::Product::apply(x, weight); }
  at::Tensor weight;
};

TEST(ScheduleTimelines, NameTheLayersWhoseBackwardIsNotCut) {
  const auto timeline_of = [](PipelineOptions options) {
    nn::Layers net(nn::Seed{1});
    net.add("first", torch::nn::Linear(4, 4));
    net.add("other", std::make_shared<OtherLayerImpl>());
    net.add("norm", [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})); });
    net.add("last", std::make_shared<OtherLayerImpl>());
    options.balance = {1, 3};
    options.micro_batches = 3;
    Pipeline pipeline(net, std::move(options));
    pipeline.step(torch::ones({6, 4}), torch::zeros({6, 4}), nn::mean_squared_error());
    return pipeline.timeline().whole_layers;
  };
  const std::vector<std::string> expected = {"other", "last"};
  EXPECT_EQ(timeline_of({.schedule = "zb_h1"}), expected);
  EXPECT_EQ(timeline_of({.schedule = "1f1b"}), std::vector<std::string>());
  // A rank knows its own; the first stage has no I.
  const auto of_ranks = spawn(
      2, [&](World& world) { return timeline_of({.group = world.group(), .schedule = "zb_h1"}); });
  EXPECT_EQ(of_ranks, (std::vector<std::vector<std::string>>{{}, expected}));
}

// Each stage's buffers are kept once for each F that is recomputed, and by none after its last R.
TEST(SchedulePeaks, AreBoundsWithLargeBuffersOnSeveralStagesOfARank) {
  struct BufferedImpl : torch::nn::Module {
    BufferedImpl() {
      weight = register_parameter("weight", torch::eye(8));
      buffer = register_buffer("buffer", torch::zeros({50, 1024}));
    }
    at::Tensor forward(const at::Tensor& x) {
      buffer.add_(1);
      return x.mm(weight);
    }
    at::Tensor weight, buffer;
  };
  for (const std::string schedule : {"gpipe", "interleaved_1f1b", "zbv", "zb_h1"})
    for (const Recompute mode : {Recompute::Never, Recompute::Always}) {
      SCOPED_TRACE(text(schedule, ", recompute ", schedule::to_string(mode)));
      const int stages = 2 * schedule::stages_per_rank(schedule, 0);
      nn::Layers net;
      for (int stage = 0; stage < stages; ++stage)
        net.add(text("layer", stage), std::make_shared<BufferedImpl>());
      const at::Tensor x = torch::ones({6, 8});
      Pipeline pipeline(net, {.devices = virtual_devices(2),
                              .balance = std::vector<int>(static_cast<std::size_t>(stages), 1),
                              .micro_batches = 6,
                              .schedule = schedule,
                              .recompute = mode});
      const auto predicted =
          pipeline.predict(pipeline.profile({x}, x, nn::mean_squared_error())).device_peak_bytes;
      pipeline.step(x, x, nn::mean_squared_error());
      for (const at::Tensor& parameter : pipeline.parameters()) parameter.mutable_grad().reset();
      const auto devices = virtual_devices(2);
      for (const Device& device : devices) reset_peak_memory(device.torch);
      pipeline.step(x, x, nn::mean_squared_error());
      std::vector<Bytes> measured;
      for (const Device& device : devices) measured.push_back(memory_usage(device.torch).peak);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_LE(measured.at(rank), predicted.at(rank) + 4096) << "rank " << rank;
        EXPECT_GE(static_cast<double>(measured.at(rank)),
                  0.6 * static_cast<double>(predicted.at(rank)))
            << "rank " << rank;
      }
    }
}

// The last batch of an epoch may be too small for the schedule's numbers.
TEST(ScheduleSizes, SmallerBatchesRunGpipeOnTheSameRanks) {
  const Net net = support::toy(0);
  const std::vector<std::pair<std::string, int>> batches = {{"interleaved_1f1b", 5},
                                                            {"dualpipev", 3}};
  for (const auto& [schedule, examples] : batches) {
    nn::Layers model = net.make();
    Pipeline pipeline(model, {.devices = virtual_devices(2),
                              .balance = {3, 2, 3, 2},
                              .micro_batches = 6,
                              .schedule = schedule});
    const at::Tensor input = net.input.narrow(0, 0, examples);
    const at::Tensor target = net.target.narrow(0, 0, examples);
    const StepResult result = pipeline.step(input, target, net.loss);
    EXPECT_EQ(result.micro_batches, examples);
    std::map<int, std::string> kinds;  // [rank] of its computations
    for (const auto& event : pipeline.timeline().events)
      if (schedule::is_compute(event.action.kind))
        kinds[event.rank] += event.action.kind == schedule::Kind::Forward ? 'F' : 'B';
    const auto twice = static_cast<std::size_t>(2 * examples);
    for (const auto& [rank, row] : kinds)
      EXPECT_EQ(row, std::string(twice, 'F') + std::string(twice, 'B')) << rank;
    const auto expected = oracle::looped(net.make(), input, target, net.loss, examples, 0, 0);
    EXPECT_NEAR(result.loss, expected.loss, oracle::rounding);
    EXPECT_LT(
        oracle::difference(expected.gradients, oracle::gradients_of(model.named_parameters())),
        oracle::rounding);
    EXPECT_EQ(pipeline.evaluate(input).sizes(), at::IntArrayRef({examples, 4}));
  }
}

}  // namespace
}  // namespace trestle
