// A training over replicas: the numbers of one process, but for the order in which gradients are added.
#include <gmock/gmock.h>

#include "tests/train/training.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/spawn.h"

namespace trestle::train {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// As make_mine(), without batch statistics, which each replica has of its own.
nn::Layers make_without_norm(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("in",
          [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).stride(2).padding(1)); })
      .keep_output("skip");
  net.add("drop", torch::nn::Dropout(0.3));
  net.add("add", [](at::Tensor x, at::Tensor skip) { return (x + skip).relu().flatten(1); })
      .take("skip");
  net.add("out", [] { return torch::nn::Linear(4 * 14 * 14, 10); });
  return net;
}

class ReplicasTraining : public Training {
 protected:
  static recipe::Recipe one_process() {
    recipe::Recipe one = recipe();
    one.model.name = "without_norm";
    one.devices.use = "cpu";
    one.devices.threads = 1;
    one.pipeline.balance = {};
    one.pipeline.micro_batches = 4;
    one.optimizer.clip_grad_norm = 1;
    return one;
  }
  static TrainHooks own_hooks(std::int64_t stop_after_steps = 0) {
    TrainHooks own = hooks(stop_after_steps);
    own.models = {{"without_norm", make_without_norm}, {"mine", make_mine}};
    return own;
  }
  static TrainResult on_ranks(int ranks, const recipe::Recipe& recipe, const fs::path& resumed = {},
                              std::int64_t stop_after_steps = 0) {
    return spawn(ranks,
                 [&](World& world) {
                   TrainHooks rank_hooks = own_hooks(stop_after_steps);
                   rank_hooks.world = &world;
                   return resumed.empty() ? train(recipe, rank_hooks)
                                          : resume(resumed, {}, rank_hooks);
                 },
                 {.deadline = 30s})
        .at(0);
  }
  static std::map<std::string, at::Tensor> tensors(const fs::path& file) {
    const auto read = checkpoint::read_weights(file).tensors;
    return {read.begin(), read.end()};
  }
  static void expect_close(const TrainResult& expected, const TrainResult& actual) {
    const auto a = tensors(expected.run_folder / "last"), b = tensors(actual.run_folder / "last");
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a)
      EXPECT_TRUE(at::allclose(tensor, b.at(name), 1e-4, 1e-6)) << name;
    EXPECT_EQ(expected.best_metric, actual.best_metric);
    const auto x = lines(expected.run_folder, "loss"), y = lines(actual.run_folder, "loss");
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i]["loss"].get<double>(), y[i]["loss"].get<double>(), 1e-5);
  }
};

TEST_F(ReplicasTraining, HasTheNumbersOfOneProcess) {
  const TrainResult one = train(one_process(), own_hooks());
  recipe::Recipe two = one_process();
  two.pipeline.micro_batches = 2;
  two.mesh.replicate = 2;
  expect_close(one, on_ranks(2, two));
  two.mesh.pipeline = 2;
  two.pipeline.balance = {2, 2};
  expect_close(one, on_ranks(4, two));
}

TEST_F(ReplicasTraining, BatchesThatAddUpAndARaggedLastOne) {
  recipe::Recipe one = one_process();
  one.train.accumulate = 2;
  one.train.drop_last = false;
  one.train.batch = 9;
  one.pipeline.micro_batches = 1;
  one.model.name = "without_norm";
  const TrainResult expected = [&] {
    recipe::Recipe plain = one;
    plain.pipeline.micro_batches = 3;
    return train(plain, own_hooks());
  }();
  one.mesh.replicate = 3;
  const TrainResult actual = on_ranks(3, one);
  // The parts of the last batch are drawn other masks than the pieces of one process: only the epochs are the same.
  EXPECT_EQ(lines(expected.run_folder, "loss").size(), lines(actual.run_folder, "loss").size());
  for (const auto& [name, tensor] : tensors(actual.run_folder / "last"))
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
}

TEST_F(ReplicasTraining, GoesOnOnOneProcessAndBack) {
  recipe::Recipe two = one_process();
  two.pipeline.micro_batches = 2;
  two.mesh.replicate = 2;
  const TrainResult whole = on_ranks(2, two);
  recipe::Recipe again = two;
  again.name += "_again";
  const TrainResult stopped = on_ranks(2, again, {}, 3);
  EXPECT_FALSE(stopped.finished);
  const TrainResult rest = on_ranks(2, again, stopped.run_folder);
  const auto a = tensors(whole.run_folder / "last"), b = tensors(rest.run_folder / "last");
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST_F(ReplicasTraining, AMeshThatIsNotTheRanksIsRefused) {
  recipe::Recipe two = one_process();
  two.mesh.replicate = 2;
  try {
    train(two, own_hooks());
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("replicate = 2, and there is 1 rank"));
    EXPECT_THAT(error.what(), HasSubstr("--ranks 2"));
  }
  EXPECT_THROW(on_ranks(3, two), UsageError);
  two.train.batch = 1;
  EXPECT_THROW(on_ranks(2, two), UsageError);
}

}  // namespace
}  // namespace trestle::train
