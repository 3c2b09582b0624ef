// Replicas with different numbers of batches, each of two tensor ranks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/join.h"
#include "trestle/sharding/sharded.h"

namespace trestle::testing {
namespace {

constexpr int batches_of[] = {3, 1};  // of each replica
constexpr double join_rate = 0.5;

at::Tensor ids_for(int replica, int step) {
  return (torch::arange(2 * 7) * (37 + 3 * step + replica) % 40).view({2, 7});
}

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& ids) {
  return at::cross_entropy_loss(scores.flatten(0, 1), ids.narrow(1, 1, 6).flatten());
}

// The mean over both replicas; one without a batch adds 0.
std::map<std::string, at::Tensor> train_joined_plainly() {
  nn::Layers net = models::transformer(models::tiny_llama());
  torch::optim::SGD optimizer(net.parameters(), join_rate);
  for (int step = 0; step < batches_of[0]; ++step) {
    optimizer.zero_grad();
    for (int replica = 0; replica < 2; ++replica) {
      if (step >= batches_of[replica]) continue;
      const at::Tensor ids = ids_for(replica, step);
      (loss_of(net.forward(ids.narrow(1, 0, 6)), ids) / 2).backward();
    }
    optimizer.step();
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : net.named_parameters()) weights[name] = tensor.detach();
  return weights;
}

TEST(TensorJoin, UnevenReplicasOfTensorRanksTrainAsThePlainModel) {
  const auto plain = train_joined_plainly();
  for (const auto level : {ShardLevel::None, ShardLevel::Gradients, ShardLevel::Parameters})
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(text(to_string(level), sequence ? ", sequence" : ""));
      spawn(4, [&](World& world) {
        const char* const over = level == ShardLevel::None ? "replicate" : "shard";
        const DeviceMesh mesh(world, {{over, 2}, {"tensor", 2}});
        const tensor_parallel::TensorRanks ranks(mesh);
        const nn::Layers net = models::transformer(
            models::tiny_llama(), {.tensor = {.ranks = ranks, .sequence = sequence}});
        const nn::ParameterSlices slices = nn::slices_of(net.graph());
        Sharded sharded(net, mesh, {.level = level});
        torch::optim::SGD optimizer(sharded.parameters(), join_rate);
        const int replica = mesh.coordinate(over);
        const auto batches = [&] {
          for (int step = 0; step < batches_of[replica]; ++step) {
            optimizer.zero_grad();
            const at::Tensor ids = ids_for(replica, step);
            sharded.backward(loss_of(sharded.forward(ids.narrow(1, 0, 6)), ids));
            optimizer.step();
          }
        };
        join({&sharded}, batches, {.after_backward = [&] { optimizer.step(); }});
        for (const auto& [name, tensor] : sharded.state()) {
          const auto slice = slices.find(name);
          const at::Tensor& all = plain.at(name);
          const at::Tensor own = slice == slices.end() ? all : slice_of(all, slice->second);
          EXPECT_LE((tensor - own).abs().max().item<double>(), 1e-5) << name;
        }
      });
    }
}

}  // namespace
}  // namespace trestle::testing
