// Mixed precision over ranks, compared with plain libtorch by hand: fp32 master weights,
// low-precision copies, sums in the requested dtype.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <mutex>

#include "tests/sharding/norm_net.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/sharding/sharded.h"

namespace trestle::testing {
namespace {

using ::testing::HasSubstr;
using Weights = std::map<std::string, at::Tensor>;
namespace F = torch::nn::functional;

constexpr int norm_steps = 3;
const SpawnOptions one_thread = {.threads = 1};  // the thread count changes the order of sums

Weights copies(const NamedTensors& named) {
  Weights weights;
  for (const auto& [name, tensor] : named) weights[name] = tensor.detach().clone();
  return weights;
}

struct Dtypes {
  at::ScalarType compute, reduce;
};

// The forward of make_norm_net() with the given weights.
at::Tensor forward(Weights& w, const at::Tensor& x) {
  at::Tensor y = at::linear(x, w["in.weight"], w["in.bias"]);
  y = at::layer_norm(y, {16}, w["layer_norm.weight"], w["layer_norm.bias"]).relu();
  y = at::batch_norm(y, w["batch_norm.weight"], w["batch_norm.bias"], w["batch_norm.running_mean"],
                     w["batch_norm.running_var"], true, 0.1, 1e-5, false);
  return at::linear(y, w["out.weight"], w["out.bias"]);
}

at::Tensor sum_of_pairs(std::vector<at::Tensor> parts) {
  for (; parts.size() > 1; parts.resize((parts.size() + 1) / 2))
    for (std::size_t i = 0; i < parts.size(); i += 2)
      parts[i / 2] = i + 1 < parts.size() ? parts[i] + parts[i + 1] : parts[i];
  return parts[0];
}

// The whole training without trestle, but for the initial weights: `ranks` shares of each batch,
// gradients summed neighbours first.
Weights by_hand(int ranks, const Dtypes& dtypes, Weights masters) {
  std::vector<at::Tensor> trained;
  for (auto& [name, master] : masters)
    if (!name.starts_with("batch_norm.run") && !name.ends_with("tracked"))
      trained.push_back(master.requires_grad_());
  torch::optim::AdamW optimizer(trained, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  const int part = norm_batch / ranks;
  for (int step = 0; step < norm_steps; ++step) {
    optimizer.zero_grad();
    std::map<std::string, std::vector<at::Tensor>> shares;
    Weights after_first;  // holds the first rank's statistics
    for (int rank = 0; rank < ranks; ++rank) {
      Weights own;
      for (const auto& [name, master] : masters) {
        const bool stays = name.starts_with("batch_norm");
        own[name] = master.detach().to(stays ? master.scalar_type() : dtypes.compute, false, true);
        if (master.requires_grad()) own[name].requires_grad_();
      }
      const at::Tensor y =
          forward(own, norm_rows(step).narrow(0, rank * part, part).to(dtypes.compute));
      EXPECT_EQ(y.scalar_type(), dtypes.compute);
      F::cross_entropy(y.to(at::kFloat), norm_classes(step).narrow(0, rank * part, part))
          .backward();
      for (const auto& [name, tensor] : own) {
        if (!masters[name].requires_grad()) continue;
        const auto wider = c10::promoteTypes(tensor.grad().scalar_type(), dtypes.reduce);
        shares[name].push_back(tensor.grad().to(wider).mul(1.0 / ranks).to(dtypes.reduce));
      }
      if (rank == 0) after_first = own;
    }
    for (auto& [name, master] : masters) {
      if (master.requires_grad())
        master.mutable_grad() = sum_of_pairs(shares[name]).to(at::kFloat);
      else
        master = after_first[name];
    }
    masters["batch_norm.num_batches_tracked"].add_(1);
    optimizer.step();
  }
  return copies({masters.begin(), masters.end()});
}

double distance_in_kind(const Weights& expected, const NamedTensors& actual) {
  double worst = expected.size() == actual.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : actual) {
    EXPECT_EQ(tensor.scalar_type(), expected.at(name).scalar_type()) << name;
    worst = std::max(worst, (tensor - expected.at(name)).abs().max().item<double>());
  }
  return worst;
}

// Trains with a Sharded. Returns the distance of rank 0's weights and statistics from `expected`.
double by_shards(int ranks, const ShardOptions& options, const Weights& expected) {
  const auto differences = spawn(
      ranks,
      [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", ranks}});
        Sharded sharded(make_norm_net(), mesh, options);
        torch::optim::AdamW optimizer(sharded.parameters(),
                                      torch::optim::AdamWOptions(0.01).weight_decay(0.1));
        const int part = norm_batch / ranks;
        for (int step = 0; step < norm_steps; ++step) {
          optimizer.zero_grad();
          const at::Tensor y =
              sharded.forward(norm_rows(step).narrow(0, world.rank() * part, part));
          EXPECT_EQ(y.scalar_type(), *options.precision.output);
          sharded.backward(
              F::cross_entropy(y, norm_classes(step).narrow(0, world.rank() * part, part)));
          for (const auto& [name, shard] : sharded.named_parameters()) {
            EXPECT_EQ(shard.scalar_type(), at::kFloat) << name;
            EXPECT_EQ(shard.grad().scalar_type(), at::kFloat) << name;
          }
          optimizer.step();
        }
        const NamedTensors state = sharded.state();  // collective: all ranks call it
        return world.rank() == 0 ? distance_in_kind(expected, state) : 0;
      },
      one_thread);
  return differences[0];
}

Weights first_weights() {
  const nn::Layers net = make_norm_net();
  Weights weights = copies(net.named_parameters());
  for (const auto& [name, tensor] : copies(net.named_buffers())) weights[name] = tensor;
  return weights;
}

// Behaviours 21 and 36: {fp16, bf16, fp32} compute x {fp16, bf16, fp32} reduction.
TEST(ShardedPrecision, TrainsAsMasterWeightsAndCopiesByHand) {
  const auto dtypes = {at::kHalf, at::kBFloat16, at::kFloat};
  for (const at::ScalarType compute : dtypes) {
    for (const at::ScalarType reduce : dtypes) {
      const bool common = compute == at::kBFloat16 && reduce != at::kHalf;
      for (const int ranks : {1, 2, 3, 4}) {
        if (ranks != 2 && !common) continue;
        const Weights expected = spawn(
            1,
            [&](World&) {
              return by_hand(ranks, {compute, reduce}, first_weights());
            },
            one_thread)[0];
        for (const ShardLevel level : sharded_levels) {
          const ShardOptions options = {
              .level = level,
              .precision = {.parameters = compute, .reduce = reduce, .output = at::kFloat},
              .buckets = {.size = 512, .first = 256}};
          EXPECT_LT(by_shards(ranks, options, expected), 2e-6)
              << to_string(level) << ", " << toString(compute) << " reduced in " << toString(reduce)
              << " on " << ranks;
        }
      }
    }
  }
}

// Behaviour 21: ranks communicate in the requested dtypes.
TEST(ShardedPrecision, CommunicatesInRequestedDtypes) {
  const auto report = [](ShardLevel level, const ShardPrecision& precision) {
    return spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      nn::Layers net(nn::Seed{5});
      net.add("a", [] { return torch::nn::Linear(32, 32); });
      net.add("b", [] { return torch::nn::Linear(32, 32); });
      Sharded sharded(net, mesh, {.level = level, .precision = precision});
      for (int step = 0; step < 2; ++step)
        sharded.backward(sharded.forward(torch::ones({2, 32})).to(at::kFloat).mean());
      sharded.unshard();
      return sharded.report();
    })[0];
  };
  for (const ShardLevel level : sharded_levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    const ShardReport own = report(level, {});
    const ShardReport half = report(level, {.parameters = at::kBFloat16});
    const ShardReport mixed = report(level, {.parameters = at::kBFloat16, .reduce = at::kFloat});
    EXPECT_EQ(own.reduced, 2 * 4 * 2 * (32 * 32 + 32));  // two steps of fp32
    EXPECT_EQ(half.reduced, own.reduced / 2);
    EXPECT_EQ(mixed.reduced, own.reduced);
    EXPECT_GT(own.gathered, 0);
    EXPECT_EQ(half.gathered, own.gathered / 2);
    EXPECT_EQ(mixed.gathered, own.gathered / 2);
  }
}

// Behaviour 21: norms in low precision, batch norm's statistics in fp32, and a torch module.
TEST(ShardedPrecision, KeepsStatisticsInFp32AndCastsOutputsOnRequest) {
  for (const ShardLevel level : sharded_levels)
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      spawn(2, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 2}});
        torch::nn::Sequential net;
        {
          static std::mutex one_at_a_time;  // ranks are threads with one default generator
          const std::lock_guard lock(one_at_a_time);
          net = torch::nn::Sequential(torch::nn::Conv2d(1, 5, 3), torch::nn::BatchNorm2d(5),
                                      torch::nn::GroupNorm(1, 5), torch::nn::Conv2d(5, 4, 3));
        }
        Sharded sharded(net.ptr(), mesh, {.level = level, .precision = {.parameters = dtype}});
        const at::Tensor x = torch::ones({2, 1, 9, 9});
        const at::Tensor y =
            sharded.run([&](const at::Tensor& input) { return net->forward(input); }, x);
        EXPECT_EQ(y.scalar_type(), dtype);
        sharded.backward(y.to(at::kFloat).square().sum());
        const auto view = sharded.unshard();
        for (const auto& item : net->named_parameters())
          EXPECT_EQ(item.value().scalar_type(), item.key().starts_with("1.") ? at::kFloat : dtype)
              << item.key();
        EXPECT_EQ(net->named_buffers()["1.running_var"].scalar_type(), at::kFloat);
      });
}

TEST(ShardedPrecision, KeepsDtypeOfNamedLayersAndCastsFrozenOnes) {
  for (const ShardLevel level : sharded_levels)
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      nn::Layers net(nn::Seed{5});
      std::vector<at::ScalarType> seen;
      const auto look = [&seen](const at::Tensor& x) {
        seen.push_back(x.scalar_type());
        return x;
      };
      net.add("first", [] { return torch::nn::Linear(6, 8); });
      net.add("frozen", [] { return torch::nn::Linear(8, 8); });
      net.add("look1", look);
      net.add("head.norm", [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})); });
      net.add("head.out", [] { return torch::nn::Linear(8, 8); });
      net.add("look2", look);
      net.add("last", [] { return torch::nn::Linear(8, 1); });
      net.add("look3", look);
      for (const auto& [name, tensor] : net.named_parameters())
        if (name.starts_with("frozen")) tensor.set_requires_grad(false);
      const Weights before = copies(net.named_parameters());
      Sharded sharded(
          net, mesh,
          {.level = level, .precision = {.parameters = at::kBFloat16, .keep = {"head"}}});
      torch::optim::SGD optimizer(sharded.parameters(), 0.1);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        sharded.backward(sharded.forward(norm_rows(1)).to(at::kFloat).square().mean());
        optimizer.step();
      }
      EXPECT_THAT(seen, ::testing::ElementsAre(at::kBFloat16, at::kFloat, at::kBFloat16,
                                               at::kBFloat16, at::kFloat, at::kBFloat16));
      for (const auto& [name, tensor] : sharded.state()) {
        EXPECT_EQ(tensor.scalar_type(), at::kFloat);
        EXPECT_EQ(tensor.equal(before.at(name)), name.starts_with("frozen")) << name;
      }
      // load_state() takes whole weights and updates the low-precision copies of frozen ones.
      NamedTensors ones;
      for (const auto& [name, tensor] : before) ones.emplace_back(name, at::ones_like(tensor));
      sharded.load_state(ones);
      const auto view = sharded.unshard();
      for (const auto& [name, tensor] : net.named_parameters())
        EXPECT_TRUE(tensor.detach().eq(1).all().item<bool>()) << name;
    });
}

// A bf16 model with fp32 sums: an optimizer's zero_grad() also clears the sums of no_sync().
TEST(ShardedPrecision, OptimizersZeroGradClearsNoSyncSumsAtLevelNone) {
  spawn(2, [&](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}});
    nn::Layers net(nn::Seed{5});
    net.add("a", [] {
      torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
      layer->to(at::kBFloat16);
      return layer;
    });
    Sharded sharded(net, mesh, {.precision = {.reduce = at::kFloat}});
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const auto backward = [&](double slope) {
      sharded.backward(sharded.forward(torch::full({1, 1}, slope, at::kBFloat16)).sum());
    };
    for (const bool zeroes : {false, true}) {
      {
        const auto no_sync = sharded.no_sync();
        backward(256);
        backward(1);
      }
      if (zeroes) optimizer.zero_grad();
      backward(1);
      EXPECT_EQ(sharded.parameters()[0].grad().item<double>(), zeroes ? 1 : 258);
      optimizer.zero_grad();
    }
  });
}

// Behaviour 21: a rank accumulates in the dtype of the reduction. In bf16, 256 + 1 is 256.
TEST(ShardedPrecision, NoSyncAccumulatesInReductionDtype) {
  for (const ShardLevel level : sharded_levels)
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      nn::Layers net(nn::Seed{5});
      net.add("a", [] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
      Sharded sharded(
          net, mesh,
          {.level = level, .precision = {.parameters = at::kBFloat16, .reduce = at::kFloat}});
      const auto backward = [&](double slope) {
        sharded.backward(sharded.forward(torch::full({1, 1}, slope)).sum());
      };
      const auto gradient = [&] {
        double sum = 0;
        for (const at::Tensor& shard : sharded.parameters())
          if (shard.numel() > 0) sum += shard.grad().item<double>();
        return sum;
      };
      for (int time = 0; time < 2; ++time) {
        {
          const auto no_sync = sharded.no_sync();
          backward(256);
          backward(1);
        }
        backward(1);
        EXPECT_EQ(gradient(), world.rank() == 0 ? 258 : 0);
        sharded.zero_grad();
      }
      {
        const auto no_sync = sharded.no_sync();
        backward(256);
      }
      sharded.zero_grad();
      backward(2);
      EXPECT_EQ(gradient(), world.rank() == 0 ? 2 : 0)
          << "zero_grad() clears accumulated gradients";
    });
}

// The mean of four equal gradients g in fp16, where 4 g or g / 4 is out of range.
TEST(ShardedPrecision, Fp16SumsStayInRange) {
  const double smallest = std::ldexp(1.0, -24);
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                 ShardLevel::Gradients, ShardLevel::Parameters})
    for (const double g : {30000.0, 2 * smallest})
      spawn(4, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 4}});
        nn::Layers net(nn::Seed{5});
        net.add("a", [] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
        ShardOptions options = {.level = level, .precision = {.reduce = at::kHalf}};
        if (level != ShardLevel::None) options.precision.parameters = at::kHalf;
        Sharded sharded(net, mesh, options);
        for (const bool weighted : {false, true}) {
          sharded.zero_grad();
          const at::Tensor y = sharded.forward(torch::full({1, 1}, g));
          sharded.backward(y.to(at::kFloat).sum(),
                           weighted ? std::optional<double>(3) : std::nullopt);
          const at::Tensor own = sharded.parameters()[0];
          EXPECT_TRUE(own.grad().eq(g).all().item<bool>()) << to_string(level) << own.grad();
        }
      });
}

// A gradient out of fp16's range before the division and inside it afterwards.
TEST(ShardedPrecision, DividesFp32GradientsBeforeCastToFp16) {
  spawn(4, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 4}});
    nn::Layers net(nn::Seed{5});
    net.add("a", [] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
    Sharded sharded(net, mesh, {.precision = {.reduce = at::kHalf}});
    sharded.backward(sharded.forward(torch::full({1, 1}, world.rank() == 0 ? 1e5 : 0.0)).sum());
    EXPECT_NEAR(sharded.parameters()[0].grad().item<double>(), 25000, 20);
  });
}

TEST(ShardedPrecision, RefusesInvalidOptions) {
  spawn(1, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 1}});
    const auto refusal = [&](const ShardPrecision& precision) -> std::string {
      try {
        Sharded(make_norm_net(), mesh, {.level = ShardLevel::Gradients, .precision = precision});
      } catch (const UsageError& error) {
        return error.what();
      }
      return "taken";
    };
    EXPECT_THAT(refusal({.parameters = at::kInt}), HasSubstr("precision.parameters = Int"));
    EXPECT_THAT(refusal({.reduce = at::kBool}), HasSubstr("precision.reduce = Bool"));
    EXPECT_THAT(refusal({.keep = {"in"}}), HasSubstr("Set precision.parameters too"));
    EXPECT_THAT(refusal({.parameters = at::kHalf, .keep = {"inn"}}), HasSubstr("names 'inn'"));
  });
}

}  // namespace
}  // namespace trestle::testing
