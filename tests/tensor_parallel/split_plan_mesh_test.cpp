// A model that a plan splits trains on meshes, and is saved whole.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "tests/tensor_parallel/checks.h"
#include "tests/tensor_parallel/split_nets.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/unet.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/parallel/parallelize.h"

namespace trestle::testing {
namespace {

namespace fs = std::filesystem;
using tensor_parallel::TensorRanks;

constexpr std::int64_t examples = 6, tokens = 5;
constexpr double rate = 0.3, max_norm = 0.5;

at::Tensor ids_of(int step) {
  return (torch::arange(examples * (tokens + 1)) * (7 + step) % words).view({examples, tokens + 1});
}

void step_by_hand(const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters)
    if (tensor.grad().defined()) tensor.sub_(tensor.grad(), rate);
}

// SGD with clipping by one process.
struct PlainTraining {
  PlainTraining() : net(language_model()) {
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      const at::Tensor ids = ids_of(step);
      const at::Tensor scores = net.forward(ids.narrow(1, 0, tokens));
      const at::Tensor loss =
          at::cross_entropy_loss(scores.flatten(0, 1), ids.narrow(1, 1, tokens).flatten());
      loss.backward();
      losses.push_back(loss.item<double>());
      norms.push_back(optim::clip_grad_norm(net.parameters(), max_norm));
      step_by_hand(net.named_parameters());
    }
  }
  nn::Layers net;
  std::vector<double> losses, norms;
};

checkpoint::SaveRanks saving(World& world) {
  return {.rank = world.rank(), .size = world.size(), .all_gather = [&](const std::string& mine) {
            return world.group().all_gather_bytes(mine);
          }};
}

void expect_plain_weights(const NamedTensors& own, const nn::ParameterSlices& slices,
                          const PlainTraining& plain) {
  std::map<std::string, at::Tensor> whole;
  for (const auto& [name, tensor] : plain.net.named_parameters()) whole[name] = tensor.detach();
  for (const auto& [name, tensor] : own) {
    const auto slice = slices.find(name);
    const at::Tensor& all = whole.at(name);
    EXPECT_TRUE(at::allclose(tensor, slice == slices.end() ? all : slice_of(all, slice->second),
                             1e-4, 1e-5))
        << name;
  }
}

// Embedding and head are tied over the first and the last stage.
TEST(SplitPlanMesh, PipelineReplicasAndTensorRanksTrainAsThePlainModelAndSaveItWhole) {
  const PlainTraining plain;
  const fs::path folder = fs::temp_directory_path() / "trestle_split_plan_mesh_test";
  spawn(8, [&](World& world) {
    const DeviceMesh mesh(world, {{"pipeline", 2}, {"replicate", 2}, {"tensor", 2}});
    const TensorRanks ranks(mesh);
    nn::Layers net = language_model();
    tensor_parallel::split(net, ranks, language_plan());
    Parallel parallel(net, mesh,
                      {.tensor_ranks = ranks, .options = {.balance = {2, 2}, .micro_batches = 2}});
    const std::int64_t share = examples / parallel.replicas(), begin = share * parallel.replica();
    for (int step = 0; step < 3; ++step) {
      parallel.zero_grad();
      const at::Tensor ids = ids_of(step).narrow(0, begin, share);
      const auto result = parallel.step(ids.narrow(1, 0, tokens), ids.narrow(1, 1, tokens),
                                        nn::token_cross_entropy());
      EXPECT_NEAR(result.loss, plain.losses[static_cast<std::size_t>(step)], 1e-5);
      EXPECT_NEAR(parallel.clip_grad_norm(max_norm), plain.norms[static_cast<std::size_t>(step)],
                  1e-4);
      step_by_hand(parallel.named_parameters());
    }
    const checkpoint::RankSlices slices = parallel.rank_slices();
    expect_plain_weights(parallel.pipeline().named_parameters(), slices.parameters, plain);
    // Each stage's layers alone were created, and one replica saves.
    for (const nn::Layer& layer : net.graph().layers)
      EXPECT_EQ(layer.module.made() != nullptr,
                mesh.coordinate("pipeline") ==
                    (layer.name == "embed" || layer.name == "blocks.0" ? 0 : 1))
          << layer.name;
    checkpoint::TrainingCheckpoint saved;
    if (parallel.replica() == 0) saved.weights = parallel.pipeline().named_parameters();
    checkpoint::write_training_checkpoint(folder, saved, saving(world), {}, slices);
  });
  nn::Layers whole = language_model();
  checkpoint::SavedTraining(folder).copy_weights(whole.named_parameters(),
                                                 checkpoint::SurplusTensors::Refused);
  expect_plain_weights(whole.named_parameters(), {}, plain);
  // And read by other tensor ranks, each its own slices.
  spawn(2, [&](World& world) {
    nn::Layers net = language_model();
    tensor_parallel::split(net, TensorRanks(world.group()), language_plan());
    const nn::ParameterSlices slices = nn::slices_of(net.graph());
    checkpoint::SavedTraining(folder, {}, slices)
        .copy_weights(net.named_parameters(), checkpoint::SurplusTensors::Refused);
    expect_plain_weights(net.named_parameters(), slices, plain);
  });
  fs::remove_all(folder);
}

// Running statistics are slices too.
TEST(SplitPlanMesh, ASplitUNetIsSavedWholeWithItsStatistics) {
  const models::UNetOptions options{.width = 2};
  const at::Tensor x = torch::arange(2 * 3 * 16 * 16).view({2, 3, 16, 16}).sin();
  nn::Layers plain = models::unet(options);
  plain.forward(x);
  const fs::path folder = fs::temp_directory_path() / "trestle_split_plan_unet_test";
  spawn(2, [&](World& world) {
    nn::Layers net = models::unet(options);
    const TensorRanks ranks(world.group());
    tensor_parallel::split(net, ranks, models::unet_plan(options));
    net.forward(x);
    checkpoint::TrainingCheckpoint saved{.weights = net.named_parameters()};
    for (const auto& buffer : net.named_buffers()) saved.weights.push_back(buffer);
    checkpoint::write_training_checkpoint(
        folder, saved, saving(world), {},
        {.parameters = nn::slices_of(net.graph()), .writes_whole_tensors = ranks.rank() == 0});
  });
  nn::Layers whole = models::unet(options);
  NamedTensors into = whole.named_parameters();
  for (const auto& buffer : whole.named_buffers()) into.push_back(buffer);
  checkpoint::SavedTraining(folder).copy_weights(into, checkpoint::SurplusTensors::Refused);
  fs::remove_all(folder);
  whole.eval();
  plain.eval();
  EXPECT_TRUE(at::allclose(whole.forward(x), plain.forward(x), 1e-4, 1e-4));
}

// torch::load() replaces the tensors of a module, whatever their sizes.
TEST(SplitPlanWeights, WholeOnesInThePlaceOfSlicesThrow) {
  const tensor_parallel::TensorRanks ranks = TensorRanks::on_paper(0, 2);
  torch::nn::Sequential mine(torch::nn::Linear(8, 6), torch::nn::ReLU(), torch::nn::Linear(6, 8));
  torch::nn::Sequential whole(torch::nn::Linear(8, 6), torch::nn::ReLU(), torch::nn::Linear(6, 8));
  nn::Layers net(mine);
  tensor_parallel::split(
      net, ranks, {{"0", tensor_parallel::Split::Columns}, {"2", tensor_parallel::Split::Rows}});
  const at::Tensor x = torch::ones({3, 8});
  EXPECT_EQ(net.forward(x).sizes(), x.sizes());
  std::stringstream saved;
  torch::save(whole, saved);
  torch::load(mine, saved);
  const std::string message = refusal_of([&] { net.forward(x); });
  EXPECT_THAT(message, ::testing::HasSubstr("in the layer '0', split by columns"));
  EXPECT_THAT(message, ::testing::HasSubstr("its weight is [6, 8], and this rank's slice [3, 8]"));
}

// A head in the program's own code that multiplies with the split table has one rank's rows alone.
TEST(SplitPlanWeights, TablesOfAnotherKindOfLayerThrow) {
  const TensorRanks ranks = TensorRanks::on_paper(0, 2);
  torch::nn::Embedding table(11, 4);
  nn::Layers net(torch::nn::Sequential{table});
  tensor_parallel::split(net, ranks, {{"0", tensor_parallel::Split::Vocabulary}});
  const at::Tensor h = torch::ones({3, 4});
  const auto refused = ::testing::HasSubstr("is used by another kind of layer");
  EXPECT_THAT(refusal_of([&] { torch::nn::functional::linear(h, table->weight); }), refused);
  EXPECT_THAT(refusal_of([&] { at::linear(h, table->weight); }), refused);
  EXPECT_THAT(refusal_of([&] { at::matmul(h, table->weight.t()); }), refused);
}

// Settings and statistics that no parameter shows change the numbers too.
TEST(SplitPlanWeights, RanksCompareBuffersAndOptionsOfLayers) {
  const auto refusal = [](const auto& middle) {
    std::string message;
    spawn(2, [&](World& world) {
      const TensorRanks ranks(world.group());
      nn::Layers net(nn::Seed{3});
      net.add("up", [] { return torch::nn::Linear(4, 6); });
      net.add("middle", [&] { return middle(world.rank()); });
      net.add("down", [] { return torch::nn::Linear(6, 4); });
      const std::string own = refusal_of([&] {
        tensor_parallel::split(
            net, ranks,
            {{"up", tensor_parallel::Split::Columns}, {"down", tensor_parallel::Split::Rows}});
      });
      if (world.rank() == 0) message = own;
    });
    return message;
  };
  EXPECT_THAT(
      refusal([](int rank) {
        return torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.1 + rank));
      }),
      ::testing::HasSubstr("negative_slope=1.1"));
}

}  // namespace
}  // namespace trestle::testing
