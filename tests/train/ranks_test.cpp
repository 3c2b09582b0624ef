// A training over ranks has the numbers of one process and leaves one run folder.
#include <gmock/gmock.h>

#include "tests/train/training.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/device/virtual_device.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RanksTraining : public Training {
 protected:
  static void expect_same_run(const TrainResult& expected, const TrainResult& actual) {
    EXPECT_EQ(metrics(expected.run_folder), metrics(actual.run_folder));
    expect_same(expected.run_folder / "best.safetensors", actual.run_folder / "best.safetensors");
    expect_same(expected.run_folder / "last", actual.run_folder / "last");
    EXPECT_EQ(expected.best_metric, actual.best_metric);
  }
};

TEST_F(RanksTraining, HasNumbersOfOneProcess) {
  const TrainResult two = train(on_cpu(), hooks());
  expect_same_run(two, on_ranks(2, on_cpu()));
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    recipe::Recipe three = on_cpu({1, 2, 2});
    three.pipeline.schedule = schedule;
    expect_same_run(train(three, hooks()), on_ranks(3, three));
  }
}

TEST_F(RanksTraining, HasNumbersOfOneProcessOnVirtualDevices) {
  recipe::Recipe devices = recipe();
  const TrainResult one = train(devices, hooks());
  const TrainResult two = on_ranks(2, devices);
  expect_same_run(one, two);
  ASSERT_EQ(two.peaks.size(), 2u);
  EXPECT_EQ(two.peaks[1].device, "virtual:1");
  EXPECT_GT(two.peaks[1].measured, 0);
}

TEST_F(RanksTraining, LeavesOneRunFolder) {
  const TrainResult result = on_ranks(3, on_cpu({1, 2, 2}));
  EXPECT_TRUE(result.finished);
  for (const char* name :
       {"recipe.toml", "metrics.jsonl", "timeline.json", "timeline.svg", "curve.svg",
        "environment.json", "best.safetensors", "log.txt", "last/index.json",
        "last/weights.rank0.safetensors", "last/weights.rank2.safetensors",
        "pictures/epoch_001.png", "pictures/epoch_002.png"})
    EXPECT_TRUE(fs::exists(result.run_folder / name)) << name;
  EXPECT_FALSE(fs::exists(result.run_folder / "best.safetensors.parts"));
  const std::string log = read_file(result.run_folder / "log.txt");
  EXPECT_THAT(log, HasSubstr("3 ranks (threads)"));
  EXPECT_THAT(log, HasSubstr("stage 2   cpu"));
}

TEST_F(RanksTraining, TimelineHasAllRanksInOrder) {
  const TrainResult result = on_ranks(2, on_cpu());
  const auto trace = nlohmann::json::parse(read_file(result.run_folder / "timeline.json"));
  double forward = -1, second = -1;
  for (const auto& event : trace["traceEvents"]) {
    const std::string name = event.value("name", "");
    if (name == "0F0" && forward < 0)
      forward = event["ts"].get<double>() + event["dur"].get<double>();
    if (name == "1F0" && second < 0) second = event["ts"].get<double>();
  }
  ASSERT_GE(forward, 0);
  EXPECT_GE(second, forward - 200) << "stages start in order on aligned clocks";
}

TEST_F(RanksTraining, ResumesOnOtherNumberOfRanks) {
  const TrainResult whole = train(on_cpu(), hooks());
  for (const std::int64_t steps : {1, 4}) {
    const TrainResult part = on_ranks(2, on_cpu(), hooks(steps));
    EXPECT_FALSE(part.finished);
    const TrainResult rest = resume(part.run_folder, {}, hooks());  // on one process
    expect_same_run(whole, rest);
    const TrainResult alone = train(on_cpu(), hooks(steps));
    expect_same_run(whole, on_ranks(2, {}, hooks(), alone.run_folder));
  }
  const TrainResult part = on_ranks(2, on_cpu(), hooks(3));
  const TrainResult three =
      spawn(3, [&](World& world) {
        TrainHooks own = hooks();
        own.world = &world;
        return resume(part.run_folder, {{"pipeline.balance", "[1, 2, 2]"}}, own);
      }).at(0);
  expect_same(whole.run_folder / "last", three.run_folder / "last");
}

// Counts the reads of its examples.
class CountedPictures : public data::Dataset {
 public:
  std::int64_t size() const override { return 40; }
  data::Sample get(std::int64_t index) const override { return get_part(index, data::Part::Both); }
  data::Sample get_part(std::int64_t index, data::Part part) const override {
    data::Sample sample{.name = text("p", index)};
    if (part != data::Part::Target) {
      ++inputs;
      sample.input = torch::arange(784).view({1, 28, 28}).mul(index + 1).remainder(7) / 7;
    }
    if (part != data::Part::Input) {
      ++targets;
      sample.target = torch::scalar_tensor(index % 10, torch::kLong);
    }
    return sample;
  }

  mutable std::atomic<int> inputs = 0, targets = 0;
};

TEST_F(RanksTraining, FirstRankReadsInputsAndLastRankReadsTargets) {
  recipe::Recipe counted = on_cpu({1, 2, 2});
  counted.data = {};
  counted.data.name = "counted";
  counted.data.flip = "both";
  counted.data.crop = 0.3;
  counted.train.accumulate = 2;
  const auto hooks_over = [](const std::shared_ptr<CountedPictures>& pictures) {
    TrainHooks own = hooks();
    own.user_parts.data_sets = {
        {"counted", [pictures](const data::DataOptions&) { return data::OwnData{pictures}; }}};
    return own;
  };
  const TrainResult one = train(counted, hooks_over(std::make_shared<CountedPictures>()));

  std::vector<std::shared_ptr<CountedPictures>> of_ranks;
  for (int r = 0; r < 3; ++r) of_ranks.push_back(std::make_shared<CountedPictures>());
  const TrainResult three = spawn(3, [&](World& world) {
                              auto own = hooks_over(of_ranks[world.rank()]);
                              own.world = &world;
                              return train(counted, own);
                            }).at(0);
  expect_same_run(one, three);
  EXPECT_GT(of_ranks[0]->inputs, 60);
  EXPECT_EQ(of_ranks[0]->targets, 0);
  EXPECT_EQ(of_ranks[1]->inputs + of_ranks[1]->targets, 0);
  EXPECT_GT(of_ranks[2]->targets, 60);
  EXPECT_LE(of_ranks[2]->inputs, 2 * counted.train.batch) << "only for the two pictures";
  EXPECT_GT(of_ranks[2]->inputs, 0);
  for (const char* epoch : {"pictures/epoch_001.png", "pictures/epoch_002.png"})
    EXPECT_EQ(read_file(one.run_folder / epoch), read_file(three.run_folder / epoch)) << epoch;
}

TEST_F(RanksTraining, AllRanksAgreeOnEveryDecision) {
  std::vector<std::function<void(recipe::Recipe&)>> kinds = {
      [](auto& r) { r.optimizer.clip_grad_norm = 0.01; },
      [](auto& r) { r.train.accumulate = 2, r.train.batch = 6, r.train.drop_last = false; },
      [](auto& r) { r.train.precision = "bf16"; },
      [](auto& r) { r.train.precision = "fp16"; },
      [](auto& r) { r.optimizer.frozen = {"out"}; },
      [](auto& r) {
        r.optimizer.name = "sgd", r.optimizer.momentum = 0.9, r.optimizer.rate_factors = {"in=0.1"};
      },
      [](auto& r) { r.train.epochs = 6, r.train.patience = 1, r.optimizer.learning_rate = 0; },
      [](auto& r) { r.train.save_every = 1, r.train.max_steps = 4, r.train.keep_best = 2; }};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    SCOPED_TRACE(i);
    recipe::Recipe changed = on_cpu();
    if (i < 6) changed.train.epochs = 1;  // the last two decide between epochs
    kinds[i](changed);
    expect_same_run(train(changed, hooks()), on_ranks(2, changed));
  }
}

TEST_F(RanksTraining, RanksLoadInitialWeightsOfTheirStages) {
  const TrainResult first = train(on_cpu(), hooks());
  recipe::Recipe begun = on_cpu();
  begun.model.weights = (first.run_folder / "best.safetensors").string();
  expect_same_run(train(begun, hooks()), on_ranks(2, begun));
  recipe::Recipe other = begun;
  other.model.weights = (base_ / "too_much.safetensors").string();
  auto more = checkpoint::read_weights(first.run_folder / "best.safetensors").tensors;
  more.emplace_back("nobody.weight", torch::ones({2}));
  checkpoint::write_weights(other.model.weights, more);
  try {
    on_ranks(2, other);
    FAIL() << "nothing was thrown";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nobody.weight"));
  }
}

TEST_F(RanksTraining, MeasuresBalanceForAllRanks) {
  recipe::Recipe measured = on_cpu({});
  const TrainResult result = on_ranks(2, measured);
  EXPECT_TRUE(result.finished);
}

TEST_F(RanksTraining, NamesDifferencesBetweenRecipes) {
  try {
    spawn(2, [&](World& world) {
      recipe::Recipe own = on_cpu();
      if (world.rank() == 1) own.optimizer.learning_rate = 0.5;
      TrainHooks rank_hooks = hooks();
      rank_hooks.world = &world;
      train(own, rank_hooks);
    });
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the ranks have different recipes"),
                                    HasSubstr("'learning_rate = 0.5"), HasSubstr("on rank 1")));
  }
}

TEST_F(RanksTraining, RefusesStagesAndDevicesThatDoNotMatchRanks) {
  const auto message = [&](int ranks, const recipe::Recipe& recipe) -> std::string {
    try {
      on_ranks(ranks, recipe);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(3, on_cpu()),
              HasSubstr("'balance' in [pipeline] has 2 stages, and 3 ranks are given"));
  EXPECT_THAT(message(3, recipe()), HasSubstr("2 devices are given for 3 ranks"));
}

TEST_F(RanksTraining, FailureOfOneRankStopsAllAndKeepsCheckpoint) {
  recipe::Recipe saved = on_cpu();
  saved.train.save_every = 1;
  std::atomic<int> asked = 0;
  try {
    spawn(2, [&](World& world) {
      TrainHooks own = hooks();
      own.world = &world;
      if (world.rank() == 1)
        own.should_stop = [&]() -> bool {
          if (++asked == 3) throw std::runtime_error("the machine of rank 1 is on fire");
          return false;
        };
      train(saved, own);
    });
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("the machine of rank 1 is on fire"));
  }
  const fs::path run = base_ / "runs" / saved.name;
  EXPECT_EQ(checkpoint::read_train_state(run / "last").step, 2);
  EXPECT_TRUE(resume(run, {}, hooks()).finished);
}

// Records the plan that the first rank reports.
struct Told : Notes {
  int plans = 0;
  RunPlan last;
  void plan(const RunPlan& made) override {
    ++plans;
    last = made;
  }
};

// The hooks of a rank: only rank 0 reports to `told`.
TrainHooks telling(Progress* told, World& world, TrainHooks own) {
  own.world = &world;
  if (world.rank() == 0) own.progress = told;
  return own;
}

TEST_F(RanksTraining, PredictsAsInOneProcess) {
  install_virtual_devices({.count = 3});  // before the first backward
  for (const std::vector<std::int64_t>& balance :
       {std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{1, 2, 2}}) {
    recipe::Recipe predicted = recipe();
    predicted.devices.use = text("virtual:", balance.size());
    predicted.pipeline.balance = balance;
    predicted.train.accumulate = 2;
    predicted.train.epochs = 3;
    Told alone, told;
    TrainHooks alone_hooks = hooks();
    alone_hooks.progress = &alone;
    const TrainResult one = train(predicted, alone_hooks);
    const TrainResult result = spawn(static_cast<int>(balance.size()), [&](World& world) {
                                 return train(predicted, telling(&told, world, hooks()));
                               }).at(0);
    EXPECT_EQ(told.plans, 1);
    EXPECT_GT(told.last.predicted_seconds, 0);
    EXPECT_GT(told.last.predicted_idle, 0);
    EXPECT_EQ(result.predicted_seconds, told.last.predicted_seconds);
    ASSERT_EQ(result.peaks.size(), balance.size());
    for (std::size_t stage = 0; stage < balance.size(); ++stage) {
      const DevicePeak& peak = result.peaks[stage];
      EXPECT_EQ(peak.predicted, told.last.stages[stage].predicted_peak);
      EXPECT_LE(peak.measured, peak.predicted) << peak.device;
      // Messages may wait on both sides; everything else is measured as in one process.
      EXPECT_GE(peak.predicted, alone.last.stages[stage].predicted_peak);
      EXPECT_LT(static_cast<double>(peak.predicted),
                1.5 * static_cast<double>(alone.last.stages[stage].predicted_peak));
    }
    expect_same_run(one, result);
    EXPECT_THAT(read_file(result.run_folder / "timeline.json"), HasSubstr("simulated"));
    EXPECT_THAT(read_file(result.run_folder / "log.txt"),
                AllOf(HasSubstr("predicted"), HasSubstr("peak at most"), HasSubstr("% idle")));
  }
}

TEST_F(RanksTraining, PredictsOnlyOnRequest) {
  recipe::Recipe silent = on_cpu();
  silent.train.predict = false;
  const TrainResult result = on_ranks(2, silent);
  EXPECT_EQ(result.predicted_seconds, 0);
  EXPECT_THAT(read_file(result.run_folder / "log.txt"), Not(HasSubstr("predicted")));
  EXPECT_GT(on_ranks(2, on_cpu()).predicted_seconds, 0);
}

// The rank that prints has enough memory; another rank's device has not.
TEST_F(RanksTraining, SuggestsFitForDeviceOfOtherRank) {
  recipe::Recipe tight = recipe();
  tight.pipeline.balance = {1, 4};
  tight.pipeline.recompute = {"never"};
  tight.train.batch = 40;
  tight.train.max_steps = 1;
  const auto told_of = [&](const std::string& devices) {
    Told told;
    tight.devices.use = devices;
    try {
      spawn(2, [&](World& world) { train(tight, telling(&told, world, hooks())); });
    } catch (const std::exception&) {  // when it does not fit
    }
    return told.last;
  };
  const RunPlan free = told_of("virtual:2");
  ASSERT_EQ(free.stages.size(), 2u);
  EXPECT_EQ(free.suggestion, "");
  const Bytes peak = free.stages[1].predicted_peak;
  const RunPlan plan = told_of(text("virtual:1x1GiB,virtual:1x", peak * 7 / 8 >> 10, "KiB"));
  EXPECT_THAT(plan.suggestion, HasSubstr("would fit")) << "stage 1 needs " << peak;
}

TEST_F(RanksTraining, DivergingLossNamesRankAndStage) {
  recipe::Recipe wild = on_cpu({1, 2, 2});
  wild.optimizer.name = "sgd";
  wild.optimizer.learning_rate = 1e6;
  wild.optimizer.weight_decay = 1e6;
  wild.train.epochs = 30;
  try {
    on_ranks(3, wild);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the loss became"), HasSubstr("(rank "),
                                    HasSubstr(", stage "), HasSubstr("learning_rate")));
  }
}

}  // namespace
}  // namespace trestle::train
