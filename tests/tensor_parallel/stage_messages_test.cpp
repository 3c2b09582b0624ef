// Messages of tensor ranks in the stages of a pipeline: in measured timelines, in profiles, and
// their order where one process has several stages.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/pipeline/profile/profile_layers.h"

namespace trestle::testing {
namespace {

using tensor_parallel::TensorRanks;

constexpr std::int64_t rows = 8, tokens = 6;

at::Tensor ids() { return (torch::arange(rows * (tokens + 1)) * 37 % 40).view({rows, tokens + 1}); }
at::Tensor inputs() { return ids().narrow(1, 0, tokens); }
at::Tensor targets() { return ids().narrow(1, 1, tokens); }

Parallel split_pipeline(World& world, const DeviceMesh& mesh, const PipelineOptions& options) {
  const TensorRanks ranks(mesh);
  return {models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}}), mesh,
          ParallelOptions{.tensor_ranks = ranks, .options = options}};
}

// A block sums twice in its forward and twice in its backward; the embedding once, the head gathers
// its scores for a loss of the program's own and sums once in its backward.
constexpr int messages_of_micro_batch = 2 * (2 + 2) + 1 + 2;

TEST(StageMessages, StandInsideOfTheMeasuredActions) {
  spawn(4, [](World& world) {
    const DeviceMesh mesh(world, {{"pipeline", 2}, {"tensor", 2}});
    Parallel parallel =
        split_pipeline(world, mesh, {.balance = {2, 3}, .micro_batches = 4, .schedule = "1f1b"});
    parallel.step(inputs(), targets(), nn::token_cross_entropy());
    const schedule::Timeline step = parallel.pipeline().gather_timeline();
    EXPECT_EQ(step.tensor_messages.size(), 4u * messages_of_micro_batch);
    for (const schedule::TensorMessage& message : step.tensor_messages) {
      EXPECT_LE(message.begin, message.wait);
      EXPECT_LE(message.wait, message.end);
      EXPECT_GT(message.bytes, 0);
      const bool inside = std::ranges::any_of(step.events, [&](const schedule::Event& event) {
        return event.rank == message.rank && schedule::is_compute(event.action.kind) &&
               event.begin <= message.begin + 1e-6 && message.end <= event.end + 1e-6;
      });
      EXPECT_TRUE(inside) << "rank " << message.rank << " from " << message.begin;
    }
    for (const int rank : {0, 1}) EXPECT_GT(tensor_times(step, rank).exposed, 0);
  });
}

// The profile is measured without messages, and lists them.
TEST(StageMessages, AreInTheProfileOfStagesAndOfLayers) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"tensor", 2}});
    Parallel parallel = split_pipeline(world, mesh, {.balance = {5}, .micro_batches = 4});
    const auto costs =
        parallel.pipeline().profile({inputs()}, targets(), nn::token_cross_entropy());
    ASSERT_EQ(costs.messages.size(), 1u);
    EXPECT_EQ(costs.messages[0].forward.size() + costs.messages[0].backward.size(),
              static_cast<std::size_t>(messages_of_micro_batch));
    EXPECT_TRUE(std::ranges::any_of(costs.messages[0].backward, [](const LayerMessage& one) {
      return one.beside > 0;
    })) << "the gradient of a column's weight is computed beside a sum";
    const TensorRanks paper = TensorRanks::on_paper(0, 2);
    const nn::Layers same = models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = paper}});
    const plan::LayerProfile profile =
        profile_layers(same, {inputs().narrow(0, 0, 2)}, at::kCPU, paper.log().get());
    std::size_t count = 0;
    for (const plan::LayerCost& layer : profile.layers)
      count += layer.forward_messages.size() + layer.backward_messages.size();
    EXPECT_EQ(count, static_cast<std::size_t>(messages_of_micro_batch));
    const plan::LayerProfile back = plan::layer_profile_from_json(to_json(profile));
    for (std::size_t i = 0; i < profile.layers.size(); ++i) {
      EXPECT_EQ(back.layers[i].forward_messages, profile.layers[i].forward_messages);
      EXPECT_EQ(back.layers[i].backward_messages, profile.layers[i].backward_messages);
    }
  });
}

// Two stages in one process could start their messages in another order than the other rank's.
TEST(StageMessages, KeepOneOrderIfAProcessHasSeveralStages) {
  const nn::Layers plain = models::transformer(models::tiny_gpt2());
  const at::Tensor scores = nn::run(plain.graph(), {inputs()}, {.seed = 5}).at(0);
  const at::Tensor loss = at::cross_entropy_loss(scores.flatten(0, 1), targets().flatten());
  loss.backward();
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, tensor] : plain.named_parameters()) gradients[name] = tensor.grad();
  const std::vector<Device> devices = virtual_devices(4);
  for (const char* schedule : {"gpipe", "1f1b"})
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"tensor", 2}});
      const auto own = devices.begin() + std::ptrdiff_t{2} * world.rank();
      PipelineOptions options{.devices = {own, own + 2}, .balance = {2, 3}, .micro_batches = 8};
      options.schedule = schedule;
      options.numerics.seed = 5;
      Parallel parallel = split_pipeline(world, mesh, options);
      const nn::ParameterSlices slices = parallel.rank_slices().parameters;
      for (int step = 0; step < 10; ++step) {
        parallel.zero_grad();
        const auto result = parallel.step(inputs(), targets(), nn::token_cross_entropy());
        EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
        for (const auto& [name, tensor] : parallel.named_parameters()) {
          const auto slice = slices.find(name);
          const at::Tensor& whole = gradients.at(name);
          const at::Tensor expected =
              slice == slices.end() ? whole : slice_of(whole, slice->second);
          const at::Tensor actual = tensor.grad().cpu();
          EXPECT_LE((actual - expected).norm().item<double>(),
                    2e-5 * expected.norm().item<double>() + 1e-7)
              << schedule << " " << name;
        }
      }
    });
}

}  // namespace
}  // namespace trestle::testing
