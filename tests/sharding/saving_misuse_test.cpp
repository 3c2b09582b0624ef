// Checkpoints of a sharded training: each tensor once, in equal shares, and load errors on all
// ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "scratch_folder.h"
#include "tests/sharding/plain_net.h"
#include "tests/sharding/rows.h"
#include "tests/support/device_of_rank.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/save/save.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(int in) {
    weight = register_parameter("weight", torch::randn({6, in}));
    empty = register_parameter("empty", torch::zeros({0, 3}));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight) + empty.sum(); }
  at::Tensor weight, empty;
};

// Tied weights, a frozen layer, a parameter with fewer elements than ranks and an empty one.
nn::Layers make_tied_net(int width = 9) {
  nn::Layers net(nn::Seed{3});
  net.add("embed", [] { return torch::nn::Linear(6, 6); });
  net.add("frozen", [] {
    torch::nn::Linear layer(6, 6);
    for (auto& parameter : layer->parameters()) parameter.set_requires_grad(false);
    return layer;
  });
  net.add("middle", [=] { return torch::nn::Linear(6, width); });
  net.add("down", [=] { return torch::nn::Linear(width, 1); });
  net.add("up", [] { return torch::nn::Linear(1, 6); });
  net.add("head", [] { return std::make_shared<HeadImpl>(6); });
  net.tie("head.weight", "embed.weight", &HeadImpl::weight);
  return net;
}

void step(Sharded& sharded, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  sharded.backward(sharded.forward(torch::ones({3, 6})).square().mean());
  optimizer.step();
}

std::vector<std::string> names_of(const checkpoint::CheckpointFolder& saved,
                                  const std::string& group) {
  std::vector<std::string> names;
  for (const auto& tensor : saved.tensors(group)) names.push_back(tensor.name);
  return names;
}

void expect_known(const NamedTensors& tensors, const NamedTensors& expected, double tolerance = 0) {
  const std::map<std::string, at::Tensor> known(expected.begin(), expected.end());
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(tensor.allclose(known.at(name), tolerance, tolerance)) << name;
}

// Saves on `ranks` ranks at one level, before and after the first step. Loads on `others` ranks at
// another level.
TEST(SavedSharded, StoresEachTensorOnce) {
  const testing::ScratchFolder scratch;
  std::vector<std::string> expected;
  for (const auto& [name, tensor] : make_tied_net().named_parameters()) expected.push_back(name);
  EXPECT_THAT(expected, ::testing::Not(::testing::Contains("head.weight")));
  int number = 0;
  for (const ShardLevel from : testing::levels)
    for (const auto& [ranks, others] : {std::pair{4, 2}, std::pair{2, 4}, std::pair{7, 1}}) {
      SCOPED_TRACE(std::string(to_string(from)) + " on " + std::to_string(ranks));
      NamedTensors whole;
      spawn(ranks, [&, count = ranks](World& world) {
        const DeviceMesh mesh(world, {{"shard", count}});
        Sharded sharded(make_tied_net(), mesh, {.level = from});
        const auto optimizer =
            optim::make_optimizer(sharded.parameters(), {.name = "adam", .learning_rate = 0.1});
        save(scratch.path("before"), sharded, *optimizer);
        step(sharded, *optimizer);
        save(scratch.path("after"), sharded, *optimizer, {.step = 1});
        const NamedTensors state = sharded.state();
        if (world.rank() == 0) whole = state;
      });
      const checkpoint::CheckpointFolder before(scratch.path("before"));
      EXPECT_THAT(names_of(before, "weights"), ::testing::UnorderedElementsAreArray(expected));
      EXPECT_TRUE(names_of(before, "optimizer").empty());
      const checkpoint::CheckpointFolder after(scratch.path("after"));
      EXPECT_EQ(names_of(after, "optimizer").size(), 3 * (expected.size() - 2))
          << "all except frozen parameters";
      checkpoint::write_as_one_file(after, scratch.path("one.safetensors"));
      const nn::Layers plain = make_tied_net();
      EXPECT_TRUE(checkpoint::load_weights(plain, scratch.path("one.safetensors")).whole());
      expect_known(plain.named_parameters(), whole);
      spawn(others, [&, count = others](World& world) {
        const DeviceMesh mesh(world, {{"shard", count}});
        Sharded sharded(make_tied_net(), mesh, {.level = testing::levels[number % 4]});
        const auto optimizer =
            optim::make_optimizer(sharded.parameters(), {.name = "adam", .learning_rate = 0.1});
        load(scratch.path("before"), sharded, *optimizer);
        EXPECT_TRUE(optimizer->state().empty());
        step(sharded, *optimizer);
        expect_known(sharded.state(), whole, 1e-4);
        load(scratch.path("after"), sharded);
        expect_known(sharded.state(), whole);
      });
      ++number;
    }
}

TEST(SavedSharded, ReplicasShareWriting) {
  const testing::ScratchFolder scratch;
  for (const ShardLevel level : testing::levels) {
    spawn(4, [&](World& world) {
      const DeviceMesh mesh(world, {{"replicate", 4}, {"shard", 1}});
      nn::Layers net(nn::Seed{1});
      for (int i = 0; i < 12; ++i)
        net.add("l" + std::to_string(i), [] { return torch::nn::Linear(64, 64); });
      Sharded sharded(net, mesh, {.level = level});
      const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adam"});
      sharded.backward(sharded.forward(torch::ones({2, 64})).sum());
      optimizer->step();
      save(scratch.path("last"), sharded, *optimizer);
    });
    for (const char* group : {"weights", "optimizer"}) {
      std::uintmax_t least = UINTMAX_MAX, most = 0;
      for (int rank = 0; rank < 4; ++rank) {
        const auto bytes =
            fs::file_size(scratch.path("last") / text(group, ".rank", rank, ".safetensors"));
        least = std::min(least, bytes), most = std::max(most, bytes);
      }
      EXPECT_LT(static_cast<double>(most), 1.05 * static_cast<double>(least))
          << group << " at level " << to_string(level);
    }
  }
}

using Work = std::function<void(Sharded&, torch::optim::Optimizer&)>;

// Runs `work` on three ranks. Returns each rank's error.
std::vector<std::string> said(const Work& work, const std::string& optimizer = "adam",
                              int width = 9) {
  return spawn(3, [&](World& world) -> std::string {
    const DeviceMesh mesh(world, {{"shard", 3}});
    Sharded sharded(make_tied_net(width), mesh, {.level = ShardLevel::Parameters});
    const auto its = optim::make_optimizer(sharded.parameters(), {.name = optimizer});
    try {
      work(sharded, *its);
    } catch (const FormatError& error) {
      return text("FormatError ", error.what());
    } catch (const FileError& error) {
      return text("FileError ", error.what());
    } catch (const UsageError& error) {
      return text("UsageError ", error.what());
    }
    return "";
  });
}

TEST(SavedSharded, ReportsMismatchesOnAllRanks) {
  const testing::ScratchFolder scratch;
  const fs::path last = scratch.path("last");
  const Work loading = [&](Sharded& sharded, torch::optim::Optimizer& optimizer) {
    load(last, sharded, optimizer);
  };
  EXPECT_THAT(said(loading), Each(HasSubstr("FileError")));
  EXPECT_THAT(said([&](Sharded& sharded, torch::optim::Optimizer& optimizer) {
                step(sharded, optimizer);
                save(last, sharded, optimizer);
              }),
              Each(""));
  EXPECT_THAT(said(loading), Each(""));
  EXPECT_THAT(
      said(loading, "adam", 10),
      Each(AllOf(HasSubstr("FormatError"), HasSubstr("3 differences"),
                 HasSubstr("'middle.weight' is Float [9, 6], but the model's is Float [10, 6]"))));
  EXPECT_THAT(said(loading, "sgd"), Each(AllOf(HasSubstr("FormatError"),
                                               HasSubstr("does not belong to this optimizer"))));
  EXPECT_THAT(said([&](Sharded& sharded, torch::optim::Optimizer&) {
                torch::optim::Adam other({torch::ones({3}, torch::requires_grad())});
                save(last, sharded, other);
              }),
              Each(AllOf(HasSubstr("UsageError"), HasSubstr("parameter number 0, [3], is not a "
                                                            "parameter of the model"))));
  // One rank's mistake reaches all ranks.
  std::atomic<int> guilty = 0;
  EXPECT_THAT(said([&](Sharded& sharded, torch::optim::Optimizer& optimizer) {
                torch::optim::Adam other({torch::ones({3}, torch::requires_grad())});
                save(last, sharded, guilty++ == 0 ? other : optimizer);
              }),
              Each(HasSubstr("UsageError")));
  EXPECT_THAT(said(loading), Each("")) << "the earlier checkpoint stays";

  // A damaged file of the right size, which only one rank reads.
  const fs::path part = last / "weights.rank2.safetensors";
  std::string bytes = read_file(part);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(part, std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_THAT(said(loading), Each(AllOf(HasSubstr("FormatError"), HasSubstr("weights.rank2"),
                                        HasSubstr("differs from the saved one"))));
  std::ofstream(part, std::ios::binary | std::ios::trunc) << bytes.substr(0, bytes.size() - 1);
  EXPECT_THAT(said(loading), Each(AllOf(HasSubstr("weights.rank2"), HasSubstr("cut short"))));
}

TEST(SavedSharded, LoadsPartOfCheckpointOnRequest) {
  const testing::ScratchFolder scratch;
  const nn::Layers plain = make_tied_net();
  const auto optimizer = optim::make_optimizer(plain.parameters(), {.name = "adam"});
  plain.forward(torch::ones({3, 6})).sum().backward();
  optimizer->step();
  save(scratch.path("last"), plain, *optimizer, {.step = 5});
  spawn(2, [&](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    nn::Layers part(nn::Seed{8});  // another order of names, and fewer of them
    part.add("down", [] { return torch::nn::Linear(9, 1); });
    part.add("up", [] { return torch::nn::Linear(1, 6); });
    part.add("embed", [] { return torch::nn::Linear(6, 6); });
    Sharded sharded(part, mesh, {.level = ShardLevel::Gradients});
    const auto its = optim::make_optimizer(sharded.parameters(), {.name = "adam"});
    EXPECT_THROW(load(scratch.path("last"), sharded, *its), FormatError);
    const auto state =
        load(scratch.path("last"), sharded, *its, {.others = checkpoint::SurplusTensors::Ignored});
    EXPECT_EQ(state.step, 5);
    EXPECT_EQ(sharded.progress().steps, 5);
    EXPECT_EQ(its->state().size(), 6u);
    expect_known(sharded.state(), plain.named_parameters());
  });
}

// Shards keep fp32 while the model computes in bf16; the checkpoint stores the fp32 values.
TEST(SavedSharded, StoresMasterWeightsOfMixedPrecision) {
  const testing::ScratchFolder scratch;
  for (const ShardLevel level : {ShardLevel::Gradients, ShardLevel::Parameters}) {
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      const ShardOptions options{.level = level,
                                 .precision = {.parameters = at::kBFloat16, .reduce = at::kFloat}};
      const auto all_trained = [] {
        const nn::Layers net = make_tied_net();
        for (auto& parameter : net.parameters()) parameter.set_requires_grad(true);
        return net;
      };
      Sharded sharded(all_trained(), mesh, options), second(all_trained(), mesh, options);
      const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adam"});
      const auto its = optim::make_optimizer(second.parameters(), {.name = "adam"});
      step(sharded, *optimizer);
      save(scratch.path("last"), sharded, *optimizer);
      load(scratch.path("last"), second, *its);
      for (int i = 0; i < 2; ++i) step(sharded, *optimizer), step(second, *its);
      expect_known(second.state(), sharded.state());
    });
    const checkpoint::CheckpointFolder folder(scratch.path("last"));
    for (const auto& tensor : folder.tensors("weights"))
      EXPECT_EQ(tensor.type, at::kFloat) << tensor.name;
  }
}

// Tensors on devices, with all state or only the weights there, and the way to the CPU and back.
TEST(SavedSharded, SavesFromDevicesAndFromCpuShards) {
  install_virtual_devices({.count = 4});
  const testing::ScratchFolder scratch;
  for (const bool on_cpu : {false, true}) {
    spawn(4, [&](World& world) {
      const at::Device device = testing::device_of_rank(world.rank());
      const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 2}});
      const ShardOptions options{
          .level = ShardLevel::Parameters, .device = device, .shards_on_cpu = on_cpu};
      const auto step_on_device = [&](Sharded& sharded, torch::optim::Optimizer& optimizer) {
        optimizer.zero_grad();
        sharded.backward(sharded.forward(torch::ones({3, 6}).to(device)).square().mean());
        optimizer.step();
      };
      Sharded sharded(make_tied_net(), mesh, options);
      const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "rmsprop"});
      step_on_device(sharded, *optimizer);
      save(scratch.path("last"), sharded, *optimizer);
      step_on_device(sharded, *optimizer);
      Sharded second(make_tied_net(), mesh, options);
      const auto its = optim::make_optimizer(second.parameters(), {.name = "rmsprop"});
      load(scratch.path("last"), second, *its);
      step_on_device(second, *its);
      expect_known(second.state(), sharded.state());
    });
    const nn::Layers plain = make_tied_net();
    const auto optimizer = optim::make_optimizer(plain.parameters(), {.name = "rmsprop"});
    load(scratch.path("last"), plain, *optimizer);
    EXPECT_EQ(optimizer->state().size(), plain.named_parameters().size() - 2)
        << "all except frozen parameters";
  }
}

}  // namespace
}  // namespace trestle
