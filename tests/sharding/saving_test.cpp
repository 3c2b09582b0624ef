// Any training resumes from the checkpoint of a sharded one: other ranks, meshes and levels, one
// process, a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch_folder.h"
#include "tests/sharding/drawing_net.h"
#include "tests/sharding/plain_net.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/state.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/sharding/save/background_save.h"
#include "trestle/sharding/save/save.h"

namespace trestle {
namespace {

using checkpoint::TrainState;
using testing::draw_and_step;
using testing::drawing_net;
using testing::drawn_rows;
using testing::same_bits;

struct MeshCase {
  ShardLevel level;
  int replicate, shard;
  int size() const { return replicate * shard; }
};
constexpr MeshCase cases[] = {
    {ShardLevel::None, 3, 1},           {ShardLevel::OptimizerState, 1, 2},
    {ShardLevel::Gradients, 2, 2},      {ShardLevel::Parameters, 1, 4},
    {ShardLevel::Parameters, 2, 2},     {ShardLevel::Parameters, 1, 3},
    {ShardLevel::OptimizerState, 2, 1}, {ShardLevel::Parameters, 1, 1}};
std::string in_words(const MeshCase& one) {
  return std::string(to_string(one.level)) + " " + std::to_string(one.replicate) + "x" +
         std::to_string(one.shard);
}

using Body = std::function<void(World&, const DeviceMesh&)>;
void on_mesh(const MeshCase& given, const Body& body) {
  SCOPED_TRACE(in_words(given));
  spawn(given.size(), [&](World& world) {
    body(world, DeviceMesh(world, {{"replicate", given.replicate}, {"shard", given.shard}}));
  });
}

torch::optim::AdamW adamw(std::vector<at::Tensor> parameters) {
  return torch::optim::AdamW(std::move(parameters),
                             torch::optim::AdamWOptions(0.05).weight_decay(0.1));
}

// A net with a channels-last weight, a buffer, a frozen weight, and a parameter with fewer elements
// than ranks.
std::shared_ptr<testing::NetImpl> odd_net() {
  auto net = testing::make_plain_net();
  net->conv->weight.set_data(net->conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  net->norm->weight.set_requires_grad(false);
  net->register_buffer("seen", torch::zeros({2}, torch::kLong));
  return net;
}

void train_odd_net(ShardedModule<testing::NetImpl>& sharded, torch::optim::Optimizer& optimizer,
                   const World& world, int from, int to) {
  const int part = testing::batch / world.size(), begin = world.rank() * part;
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    const at::Tensor y = sharded.forward(testing::images(step).narrow(0, begin, part));
    sharded.backward(testing::F::cross_entropy(y, testing::targets(step).narrow(0, begin, part)));
    sharded.clip_grad_norm(0.5);
    optimizer.step();
  }
}

// Trains with libtorch alone.
void train_plainly(testing::NetImpl& net, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    testing::F::cross_entropy(net.forward(testing::images(step)), testing::targets(step))
        .backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.5);
    optimizer.step();
  }
}

testing::Weights plain_weights(int steps) {
  const auto net = odd_net();
  auto optimizer = adamw(net->parameters());
  train_plainly(*net, optimizer, 0, steps);
  return testing::weights_of(*net);
}

double parameter_difference(const testing::Weights& expected, const NamedTensors& actual) {
  NamedTensors parameters;
  for (const auto& named : actual)
    if (expected.contains(named.first)) parameters.push_back(named);
  return testing::difference(expected, parameters);
}

TEST(SavedSharded, ResumesAtAnyLevelMeshAndWorldSize) {
  const testing::ScratchFolder scratch;
  const auto expected = plain_weights(4);
  const auto go_on = [&](const MeshCase& to) {
    on_mesh(to, [&](World& world, const DeviceMesh& mesh) {
      ShardedModule<testing::NetImpl> sharded(odd_net(), mesh, {.level = to.level});
      auto optimizer = adamw(sharded.parameters());
      const TrainState state = load(scratch.path("last"), sharded, optimizer);
      EXPECT_EQ(state.samples, 24);
      EXPECT_EQ(state.numbers, (std::map<std::string, double>{{"scale", 0.1}}));
      EXPECT_EQ(sharded.progress().steps, 2);
      EXPECT_EQ(sharded->named_buffers()["seen"][1].item<int>(), 7);
      train_odd_net(sharded, optimizer, world, 2, 4);
      EXPECT_LT(parameter_difference(expected, sharded.state()), 1e-12) << world.rank();
    });
  };
  for (const MeshCase& from : cases) {
    SCOPED_TRACE("from " + in_words(from));
    on_mesh(from, [&](World& world, const DeviceMesh& mesh) {
      const auto net = odd_net();
      ShardedModule<testing::NetImpl> sharded(net, mesh,
                                              {.level = from.level, .buckets = {.size = 2048}});
      auto optimizer = adamw(sharded.parameters());
      train_odd_net(sharded, optimizer, world, 0, 2);
      // Training forwards broadcast rank 0's buffers.
      net->named_buffers()["seen"].fill_(world.rank() == 0 ? 7 : 8);
      save(scratch.path("last"), sharded, optimizer,
           {.step = 2, .samples = 24, .numbers = {{"scale", 0.1}}});
    });
    for (const MeshCase& to : cases) go_on(to);
    const auto net = odd_net();  // one process with libtorch's own classes
    auto optimizer = adamw(net->parameters());
    EXPECT_EQ(load(scratch.path("last"), *net, optimizer).samples, 24);
    train_plainly(*net, optimizer, 2, 4);
    const auto weights = testing::weights_of(*net);
    EXPECT_LT(parameter_difference(expected, {weights.begin(), weights.end()}), 1e-12);
  }
  const auto net = odd_net();
  auto optimizer = adamw(net->parameters());
  train_plainly(*net, optimizer, 0, 2);
  net->named_buffers()["seen"].fill_(7);
  save(scratch.path("last"), *net, optimizer,
       {.step = 2, .samples = 24, .numbers = {{"scale", 0.1}}});
  for (const MeshCase& to : cases) go_on(to);
}

const optim::OptimizerOptions optimizers[] = {
    {.name = "adam", .learning_rate = 0.01, .amsgrad = true},
    {.name = "adamw", .learning_rate = 0.01, .weight_decay = 0.1},
    {.name = "sgd", .learning_rate = 0.05, .momentum = 0.9},
    {.name = "rmsprop", .learning_rate = 0.01, .momentum = 0.5}};

// Restores dropout, batch norm, optimizer state and the count of forwards without a backward.
TEST(SavedSharded, ResumesToBitsOfUninterruptedTraining) {
  const testing::ScratchFolder scratch;
  for (const auto& which : optimizers)
    for (const MeshCase& given : {cases[0], cases[1], cases[2], cases[3], cases[4]}) {
      SCOPED_TRACE(which.name);
      on_mesh(given, [&](World& world, const DeviceMesh& mesh) {
        const ShardOptions options{.level = given.level, .buckets = {.size = 512}, .seed = 9};
        Sharded whole(drawing_net(), mesh, options);
        const auto optimizer = optim::make_optimizer(whole.parameters(), which);
        for (int step = 0; step < 5; ++step) {
          if (step == 3) (void)whole.forward(drawn_rows(8, world));
          draw_and_step(whole, *optimizer, world, step);
        }
        TrainState state;
        {
          Sharded first(drawing_net(), mesh, options);
          const auto its = optim::make_optimizer(first.parameters(), which);
          while (state.step < 3) draw_and_step(first, *its, world, static_cast<int>(state.step++));
          (void)first.forward(drawn_rows(8, world));
          save(scratch.path("last"), first, *its, state);
        }
        Sharded second(drawing_net(), mesh, options);
        const auto its = optim::make_optimizer(second.parameters(), which);
        state = load(scratch.path("last"), second, *its);
        EXPECT_EQ(state.step, 3);
        while (state.step < 5) draw_and_step(second, *its, world, static_cast<int>(state.step++));
        EXPECT_TRUE(same_bits(second.state(), whole.state())) << world.rank();
      });
    }
}

// A save in the middle of a step that accumulates two reduced backwards.
TEST(SavedSharded, RestoresAccumulatedGradients) {
  const testing::ScratchFolder scratch;
  for (const MeshCase& given : {cases[0], cases[1], cases[2], cases[3]})
    on_mesh(given, [&](World& world, const DeviceMesh& mesh) {
      const auto backward = [&](Sharded& sharded, int step) {
        sharded.backward(sharded.forward(drawn_rows(step, world)).square().mean());
      };
      Sharded whole(drawing_net(), mesh, {.level = given.level});
      const auto optimizer = optim::make_optimizer(whole.parameters(), optimizers[1]);
      backward(whole, 0);
      save(scratch.path("last"), whole, *optimizer, {}, {.gradients = true});
      backward(whole, 1);
      optimizer->step();
      Sharded second(drawing_net(), mesh, {.level = given.level});
      const auto its = optim::make_optimizer(second.parameters(), optimizers[1]);
      load(scratch.path("last"), second, *its);
      backward(second, 1);
      its->step();
      EXPECT_TRUE(same_bits(second.state(), whole.state())) << world.rank();
      {
        const auto no_sync = second.no_sync();
        backward(second, 2);
      }
      EXPECT_THROW(save(scratch.path("last"), second, *its), StateError);
      second.zero_grad();
      save(scratch.path("last"), second, *its);
    });
}

// The pipeline's program saves by hand, as docs/resume.md shows.
TEST(SavedSharded, ResumesInPipelineAndBack) {
  const testing::ScratchFolder scratch;
  const auto make = [] {
    nn::Layers net(nn::Seed{5});
    net.add("in", [] { return torch::nn::Linear(6, 37); });
    net.add("act", torch::nn::Tanh());
    net.add("out", [] { return torch::nn::Linear(37, 3); });
    return net;
  };
  const at::Tensor x = torch::randn({8, 6}), y = torch::randint(0, 3, {8});
  const auto step_sharded = [&](Sharded& sharded, torch::optim::Optimizer& optimizer,
                                const World& world) {
    optimizer.zero_grad();
    const std::int64_t begin = 4 * world.rank();
    sharded.backward(
        torch::cross_entropy_loss(sharded.forward(x.narrow(0, begin, 4)), y.narrow(0, begin, 4)));
    optimizer.step();
  };
  const nn::Layers net = make();
  Pipeline pipeline(net, {.balance = {2, 1}, .micro_batches = 2});
  const auto optimizer = optim::make_optimizer(pipeline.parameters(), optimizers[1]);
  const auto names = optim::names_in(*optimizer, pipeline.named_parameters());
  const auto step = [&] {
    optimizer->zero_grad();
    pipeline.step(x, y, nn::cross_entropy());
    optimizer->step();
  };
  const auto expect_near = [](const NamedTensors& a, const NamedTensors& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(a[i].second.allclose(b[i].second, 1e-5, 1e-6)) << a[i].first;
  };
  step();
  checkpoint::write_training_checkpoint(scratch.path("last"),
                                        {.weights = pipeline.named_parameters(),
                                         .optimizer = optim::optimizer_state(*optimizer, names),
                                         .state = {.step = 1}});
  step();
  NamedTensors of_three;
  spawn(2, [&](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    Sharded sharded(make(), mesh, {.level = ShardLevel::Parameters});
    const auto its = optim::make_optimizer(sharded.parameters(), optimizers[1]);
    EXPECT_EQ(load(scratch.path("last"), sharded, *its).step, 1);
    EXPECT_EQ(sharded.progress().steps, 1);
    step_sharded(sharded, *its, world);
    expect_near(sharded.state(), pipeline.named_parameters());
    save(scratch.path("back"), sharded, *its, {.step = 2});
    step_sharded(sharded, *its, world);
    const NamedTensors state = sharded.state();
    if (world.rank() == 0) of_three = state;
  });
  const checkpoint::SavedTraining saved(scratch.path("back"));
  saved.copy_weights(pipeline.named_parameters(), checkpoint::SurplusTensors::Refused);
  optim::load_optimizer_state(*optimizer, names, saved.optimizer(names));
  step();
  expect_near(of_three, pipeline.named_parameters());
}

// The checkpoint has the state at the call of save(), however far training has gone since.
TEST(SavedSharded, SavesInBackgroundWhileTrainingContinues) {
  const testing::ScratchFolder scratch;
  for (const MeshCase& given : {cases[0], cases[1], cases[2], cases[3]})
    on_mesh(given, [&](World& world, const DeviceMesh& mesh) {
      Sharded sharded(drawing_net(), mesh, {.level = given.level});
      const auto optimizer = optim::make_optimizer(sharded.parameters(), optimizers[1]);
      NamedTensors expected;
      {
        BackgroundSave saving(mesh, sharded);
        for (int step = 0; step < 4; ++step) {
          draw_and_step(sharded, *optimizer, world, step);
          saving.save(scratch.path("last"), sharded, *optimizer, {.step = step + 1});
        }
        expected = sharded.state();
        for (int step = 4; step < 8; ++step) draw_and_step(sharded, *optimizer, world, step);
        saving.wait();
        std::filesystem::create_directories(scratch.path("mine") / "letters");
        world.group().barrier();
        saving.save(scratch.path("mine"), sharded, *optimizer);
        EXPECT_THROW(saving.wait(), UsageError) << "the folder holds other files";
        saving.wait();
      }
      const NamedTensors after = sharded.state();
      EXPECT_EQ(load(scratch.path("last"), sharded, *optimizer).step, 4);
      const NamedTensors loaded = sharded.state();
      EXPECT_TRUE(world.rank() > 0 || same_bits(loaded, expected)) << "buffers are rank 0's";
      for (int step = 4; step < 8; ++step) draw_and_step(sharded, *optimizer, world, step);
      EXPECT_TRUE(same_bits(sharded.state(), after)) << world.rank();
    });
}

}  // namespace
}  // namespace trestle
