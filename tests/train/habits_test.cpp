// Features of training beyond plain steps: schedules, accumulation, groups, early stopping, and
// resuming with changes.
#include <gmock/gmock.h>

#include <map>

#include "tests/train/training.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/optim/learning_rate.h"
#include "trestle/precision/cpu_support.h"
#include "trestle/train/optimizers/parameter_groups.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Weights = std::map<std::string, at::Tensor>;

class TrainFeatures : public Training {
 protected:
  static Weights weights(const fs::path& run) {
    const auto saved = checkpoint::read_tensors(run / "last/weights.safetensors");
    return {saved.tensors.begin(), saved.tensors.end()};
  }
  static std::string refusal(const recipe::Recipe& recipe) {
    try {
      train(recipe, hooks());
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  }
  // Stops after N batches: should_stop is called once after each batch.
  static TrainHooks stopping_after(int batches) {
    TrainHooks stopping = hooks();
    stopping.should_stop = [left = batches]() mutable { return --left <= 0; };
    return stopping;
  }
};

TEST_F(TrainFeatures, RecordsRateNormAndMemoryOfEveryStep) {
  recipe::Recipe clipped = recipe();
  clipped.optimizer.clip_grad_norm = 0.01;
  const TrainResult free = train(recipe(), hooks()), tied = train(clipped, hooks());
  ASSERT_EQ(steps(free.run_folder).size(), 6u);
  for (const nlohmann::json& step : steps(free.run_folder)) {
    EXPECT_EQ(step["learning_rate"], 0.01);
    EXPECT_GT(step["gradient_norm"], 0.01);
    EXPECT_GT(step["peak_bytes"]["virtual:0"], 0);
    EXPECT_GT(step["peak_bytes"]["virtual:1"], 0);
  }
  EXPECT_EQ(steps(free.run_folder)[0]["gradient_norm"], steps(tied.run_folder)[0]["gradient_norm"])
      << "the norm is computed before clipping";
}

// The second of the accumulated batches runs while the first one's gradients exist.
TEST_F(TrainFeatures, PredictsPeaksWithAccumulatedGradients) {
  recipe::Recipe summed = recipe();
  summed.train.batch = 4;
  summed.train.accumulate = 3;
  summed.pipeline.recompute = {"always"};
  const TrainResult result = train(summed, hooks());
  ASSERT_EQ(result.peaks.size(), 2u);
  for (const DevicePeak& peak : result.peaks) EXPECT_LE(peak.measured, peak.predicted);
}

TEST_F(TrainFeatures, FollowsAndResumesLearningRateSchedule) {
  recipe::Recipe scheduled = recipe();
  scheduled.train.epochs = 3;
  scheduled.optimizer.learning_rate_schedule = "cosine";
  scheduled.optimizer.warm_up = 2;
  scheduled.optimizer.min_learning_rate = 1e-4;
  optim::LearningRate expected(0.01,
                               {.schedule = "cosine", .length = 7, .lowest = 1e-4, .warm_up = 2});
  const TrainResult whole = train(scheduled, hooks());
  const auto made = steps(whole.run_folder);
  ASSERT_EQ(made.size(), 9u);
  for (std::size_t i = 0; i < made.size(); ++i)
    EXPECT_EQ(made[i]["learning_rate"], expected.at(static_cast<std::int64_t>(i)));
  TrainResult part = train(scheduled, hooks(4));
  part = resume(part.run_folder, {}, hooks());
  EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder));
}

TEST_F(TrainFeatures, OneCycleChangesMomentumAndIsResumed) {
  for (const char* optimizer : {"sgd", "adam", "rmsprop"}) {
    SCOPED_TRACE(optimizer);
    recipe::Recipe cycling = recipe();
    cycling.optimizer.name = optimizer;
    cycling.optimizer.learning_rate = 1e-3;
    cycling.optimizer.learning_rate_schedule = "one_cycle";
    const TrainResult whole = train(cycling, hooks());
    TrainResult part = train(cycling, hooks(3));
    part = resume(part.run_folder, {}, hooks());
    EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder));
    const Weights expected = weights(whole.run_folder), actual = weights(part.run_folder);
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(actual.at(name))) << name;
    cycling.optimizer.one_cycle_momentum = false;
    const Weights still = weights(train(cycling, hooks()).run_folder);
    EXPECT_FALSE(still.at("out.weight").equal(expected.at("out.weight")));
  }
}

TEST_F(TrainFeatures, SchedulesByEpoch) {
  recipe::Recipe scheduled = recipe();
  scheduled.train.epochs = 3;
  scheduled.optimizer.learning_rate_schedule = "step";
  scheduled.optimizer.schedule_by = "epoch";
  scheduled.optimizer.decay_factor = 0.5;
  std::vector<double> rates;
  for (const auto& step : steps(train(scheduled, hooks()).run_folder))
    rates.push_back(step["learning_rate"]);
  EXPECT_THAT(
      rates, ::testing::ElementsAre(0.01, 0.01, 0.01, 0.005, 0.005, 0.005, 0.0025, 0.0025, 0.0025));
  scheduled.optimizer.learning_rate_schedule = "cosine";
  scheduled.optimizer.warm_up = 3;
  EXPECT_THAT(refusal(scheduled), HasSubstr("the run has 3 epochs, and warm_up = 3"));
}

// Micro-batches and random numbers are equal, and a step's loss is the mean.
TEST_F(TrainFeatures, AccumulatedBatchesEqualOneLargerBatch) {
  recipe::Recipe large = recipe();
  large.pipeline.backward_order = "forward";  // adds gradients in the same order
  large.pipeline.micro_batches = 4;
  large.train.batch = 20;
  recipe::Recipe small = large;
  small.name += "_small";
  small.pipeline.micro_batches = 2;
  small.train.batch = 10;
  small.train.accumulate = 2;
  const TrainResult one = train(large, hooks()), two = train(small, hooks());
  EXPECT_EQ(one.steps, 4);
  EXPECT_EQ(two.steps, 4);
  const Weights expected = weights(one.run_folder), actual = weights(two.run_folder);
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(actual.at(name))) << name;
  const auto a = steps(one.run_folder), b = steps(two.run_folder);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i]["loss"], b[i]["loss"], 1e-6);
    EXPECT_EQ(a[i]["gradient_norm"], b[i]["gradient_norm"]);
  }
}

// 40 samples in batches of 6: a step of four batches, then one of three, whose last batch has 4
// samples. Four more calls of should_stop occur in validation.
TEST_F(TrainFeatures, ResumesWithinStepToSameBits) {
  recipe::Recipe adding = recipe();
  adding.train.batch = 6;
  adding.train.drop_last = false;
  adding.train.accumulate = 4;
  const TrainResult whole = train(adding, hooks());
  EXPECT_EQ(whole.steps, 4);
  for (const int batches : {1, 3, 4, 6, 7, 9, 13}) {
    TrainResult part = train(adding, stopping_after(batches));
    EXPECT_FALSE(part.finished);
    const bool inside = batches != 4 && batches != 7 && batches != 9;
    EXPECT_EQ(fs::exists(part.run_folder / "last/gradients.safetensors"), inside) << batches;
    part = resume(part.run_folder, {}, hooks());
    EXPECT_TRUE(part.finished);
    for (const char* file : {"last/weights.safetensors", "last/optimizer.safetensors"})
      EXPECT_EQ(read_file(part.run_folder / file), read_file(whole.run_folder / file))
          << "stopped after " << batches << " batches";
    EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder)) << batches;
  }
}

TEST_F(TrainFeatures, FreezesLayersAndScalesRatesOfGroups) {
  recipe::Recipe grouped = recipe();
  grouped.optimizer.name = "sgd";
  grouped.optimizer.learning_rate = 1;
  const Weights plain = weights(train(grouped, hooks(1)).run_folder);
  Weights start;
  for (const auto& [name, parameter] :
       make_mine({.name = "mine", .seed = static_cast<std::uint64_t>(grouped.train.seed)})
           .named_parameters())
    start[name] = parameter.detach();
  grouped.optimizer.frozen = {"in", "norm.bias"};
  grouped.optimizer.rate_factors = {"out=0.5", "*.bias=2"};
  grouped.optimizer.weight_decay = 0.1;
  grouped.optimizer.no_weight_decay = {"one_dimensional"};
  const TrainResult run = train(grouped, hooks(1));
  const Weights own = weights(run.run_folder);
  for (const auto& [name, before] : start) {
    const bool frozen = name.starts_with("in.") || name == "norm.bias";
    const double factor = name == "out.bias" ? 2 : name == "out.weight" ? 0.5 : 1;
    const at::Tensor gradient = before - plain.at(name);  // from a step of rate 1
    const double decay = before.dim() > 1 ? 0.1 : 0;
    const at::Tensor expected = frozen ? before : before - factor * (gradient + decay * before);
    EXPECT_TRUE(at::allclose(own.at(name), expected, 1e-5, 1e-6)) << name;
  }
  const TrainResult more = resume(run.run_folder, {}, hooks());
  EXPECT_TRUE(weights(more.run_folder).at("in.weight").equal(start.at("in.weight")));
}

TEST_F(TrainFeatures, RefusesPatternsWithoutMatch) {
  recipe::Recipe bad = recipe();
  bad.optimizer.frozen = {"norn"};
  EXPECT_THAT(refusal(bad), AllOf(HasSubstr("named 'norn'"), HasSubstr("did you mean 'norm'?")));
  bad.optimizer.frozen = {"*"};
  EXPECT_THAT(refusal(bad), HasSubstr("nothing is left to train"));
  bad.optimizer.frozen = {};
  bad.optimizer.rate_factors = {"out"};
  EXPECT_THAT(refusal(bad), HasSubstr("\"pattern=factor\""));
  bad.optimizer.rate_factors = {"out=-1"};
  EXPECT_THAT(refusal(bad), HasSubstr("above 0"));
  bad.optimizer.rate_factors = {};
  bad.optimizer.amsgrad = true;
  bad.optimizer.name = "sgd";
  EXPECT_THAT(refusal(bad), HasSubstr("'sgd' has no amsgrad"));
}

TEST_F(TrainFeatures, RefusesUnknownScheduleBeforeCreatingRunFolder) {
  recipe::Recipe bad = recipe();
  bad.optimizer.learning_rate_schedule = "cosinus";
  EXPECT_THAT(refusal(bad), HasSubstr("did you mean 'cosine'?"));
  bad.optimizer.learning_rate_schedule = "multi_step";
  bad.optimizer.milestones = {9, 3};
  EXPECT_THAT(refusal(bad), HasSubstr("[9, 3] do not ascend"));
  EXPECT_FALSE(fs::exists(fs::path(bad.train.runs) / bad.name));
}

TEST(ParameterNames, MatchLayersPrefixesAndWildcards) {
  EXPECT_TRUE(names_parameter("down1", "down1.conv.weight"));
  EXPECT_TRUE(names_parameter("down1.conv", "down1.conv.weight"));
  EXPECT_TRUE(names_parameter("down1.conv.weight", "down1.conv.weight"));
  EXPECT_TRUE(names_parameter("*.weight", "down1.conv.weight"));
  EXPECT_TRUE(names_parameter("d*1", "down1.conv.weight"));
  EXPECT_TRUE(names_parameter("*", "w"));
  EXPECT_FALSE(names_parameter("down", "down1.conv.weight"));
  EXPECT_FALSE(names_parameter("*.bias", "down1.conv.weight"));
  EXPECT_FALSE(names_parameter("conv", "down1.conv.weight"));
}

TEST_F(TrainFeatures, MaxStepsEndsRunWithinEpochAndRunResumesThere) {
  recipe::Recipe shorter = recipe();
  shorter.train.max_steps = 4;
  const TrainResult part = train(shorter, hooks());
  EXPECT_TRUE(part.finished);
  EXPECT_EQ(part.steps, 4);
  EXPECT_EQ(lines(part.run_folder, "training_loss").size(), 2u)
      << "the partial epoch is validated too";
  Notes notes;
  TrainHooks told = hooks();
  told.progress = &notes;
  resume(part.run_folder, {}, told);
  EXPECT_THAT(notes.lines, HasSubstr("has all its steps, 4 (--max-steps 5 or more continues"));
  resume(part.run_folder, {{"train.max_steps", "0"}}, hooks());
  const TrainResult whole = train(recipe(), hooks());
  EXPECT_EQ(read_file(part.run_folder / "last/weights.safetensors"),
            read_file(whole.run_folder / "last/weights.safetensors"));
  EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder));
}

TEST_F(TrainFeatures, PatienceEndsRunWithoutImprovement) {
  recipe::Recipe stuck = recipe();
  stuck.train.epochs = 9;
  stuck.train.patience = 2;
  stuck.train.min_delta = 1;  // of an accuracy: never reached
  const TrainResult run = train(stuck, hooks());
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.epochs, 3);
  Notes notes;
  TrainHooks told = hooks();
  told.progress = &notes;
  resume(run.run_folder, {}, told);
  EXPECT_THAT(notes.lines,
              HasSubstr("ended early, 2 epochs without a better metric (--patience 3"));
  EXPECT_EQ(resume(run.run_folder, {{"train.patience", "3"}}, hooks()).epochs, 4);
}

TEST_F(TrainFeatures, KeepsBestCheckpoints) {
  recipe::Recipe kept = recipe();
  kept.train.epochs = 5;
  kept.train.keep_best = 2;
  const TrainResult first = train(kept, hooks(7));  // the third epoch has begun
  const TrainResult run = resume(first.run_folder, {}, hooks());
  std::vector<std::pair<double, int>> order;  // best first; of equals the earlier one
  for (const auto& epoch : lines(run.run_folder, "training_loss"))
    order.emplace_back(-epoch["accuracy"].get<double>(), epoch["epoch"].get<int>());
  std::sort(order.begin(), order.end());
  std::vector<std::string> expected, files;
  for (int i = 0; i < 2; ++i) expected.push_back(text("epoch_00", order[i].second, ".safetensors"));
  for (const auto& entry : fs::directory_iterator(run.run_folder / "best"))
    files.push_back(entry.path().filename().string());
  EXPECT_THAT(files, ::testing::UnorderedElementsAreArray(expected));
  EXPECT_EQ(read_file(run.run_folder / "best" / expected[0]),
            read_file(run.run_folder / "best.safetensors"));
}

TEST_F(TrainFeatures, MixedPrecisionResumesToSameBits) {
  for (const char* precision : {"bf16", "fp16"}) {
    recipe::Recipe mixed = recipe();
    mixed.name += precision;
    mixed.train.precision = precision;
    Notes notes;
    TrainHooks told = hooks();
    told.progress = &notes;
    const TrainResult whole = train(mixed, told);
    const bool said = notes.lines.find("no instructions for") != std::string::npos;
    EXPECT_NE(said, precision::cpu_supports(precision::parse_precision(precision)));
    for (const auto& [name, tensor] : weights(whole.run_folder))
      EXPECT_FALSE(tensor.is_floating_point() && tensor.scalar_type() != at::kFloat) << name;
    TrainResult part = train(mixed, hooks(4));
    const auto state = checkpoint::read_train_state(part.run_folder / "last");
    EXPECT_EQ(state.numbers.count("_growth_tracker"), precision == std::string("fp16") ? 1u : 0u);
    part = resume(part.run_folder, {}, hooks());
    EXPECT_EQ(read_file(part.run_folder / "last/weights.safetensors"),
              read_file(whole.run_folder / "last/weights.safetensors"));
    EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder));
  }
}

// The order of the reports, and the slow precision's.
struct SlowReports : Notes {
  std::vector<std::string> order;
  SlowPrecisionReport slow;
  void slow_precision(const SlowPrecisionReport& report) override {
    order.emplace_back("slow");
    slow = report;
  }
  void plan(const RunPlan&) override { order.emplace_back("plan"); }
};

TEST_F(TrainFeatures, SlowPrecisionIsReportedBeforeAnythingComputesInIt) {
  SlowReports reports;
  TrainHooks faked = hooks(1);
  faked.progress = &reports;
  faked.layer_speed = [](const nn::Layers& model) {
    return precision::LayerSpeed{
        .weight = text(model.size(), " layers"), .fp32 = 0.002, .bf16 = 0.001, .fp16 = 0.08};
  };
  recipe::Recipe half = recipe();
  half.train.precision = "fp16";
  half.pipeline.balance = {};  // measured in fp16
  const TrainResult trained = train(half, faked);
  EXPECT_EQ(trained.steps, 1) << "the run continues";
  EXPECT_EQ(reports.order, (std::vector<std::string>{"slow", "plan"}));
  EXPECT_EQ(reports.slow.precision, "fp16");
  EXPECT_EQ(reports.slow.weight, "5 layers");
  EXPECT_EQ(reports.slow.better, "bf16");
  EXPECT_EQ(reports.slow.seconds, 0.08);
  EXPECT_EQ(reports.slow.fp32_seconds, 0.002);
  EXPECT_THAT(reports.slow.words, HasSubstr("fp16 takes 40 times as long as fp32"));
  EXPECT_THAT(reports.slow.words, HasSubstr("precision = \"bf16\" in [train]"));

  // A dry run measures in bf16, and predicts what fp16 takes.
  reports.order.clear();
  const RunPlan slow = plan_run(half, faked);
  EXPECT_EQ(reports.order, (std::vector<std::string>{"slow", "plan"}));
  half.train.precision = "bf16";
  reports.order.clear();
  const RunPlan quick = plan_run(half, faked);
  EXPECT_EQ(reports.order, std::vector<std::string>{"plan"});
  EXPECT_GT(slow.predicted_seconds, 5 * quick.predicted_seconds)
      << "80 times, in two of five layers";
}

// Its last layer divides by 0.
nn::Layers make_broken(const models::ModelOptions& options) {
  nn::Layers net = make_mine(options);
  net.add("odd", [](at::Tensor x) { return x / (x.sum() * 0); });
  return net;
}

TEST_F(TrainFeatures, NonFiniteLossNamesStepStageAndLayer) {
  recipe::Recipe wild = recipe();
  wild.model.name = "broken";
  wild.pipeline.balance = {2, 4};
  TrainHooks own = hooks();
  own.models = {{"broken", make_broken}};
  try {
    train(wild, own);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("in step 1 (epoch 1)"),
                      HasSubstr("the output of layer 'odd' in stage 1 is the first")));
  }
}

TEST_F(TrainFeatures, ResumesWithOtherCutAndReportsIt) {
  const TrainResult whole = train(recipe(), hooks());
  const TrainResult part = train(recipe(), hooks(4));
  Notes notes;
  TrainHooks told = hooks();
  told.progress = &notes;
  const TrainResult more = resume(part.run_folder,
                                  {{"pipeline.balance", "3,2"},
                                   {"pipeline.schedule", "1f1b"},
                                   {"pipeline.recompute", "never"},
                                   {"devices.use", "cpu,cpu"}},
                                  told);
  EXPECT_TRUE(more.finished);
  EXPECT_THAT(notes.lines, AllOf(HasSubstr("changed   pipeline.balance = [3, 2], was [2, 3]\n"),
                                 HasSubstr("pipeline.schedule = \"1f1b\", was \"gpipe\"\n"),
                                 HasSubstr("devices.use = \"cpu,cpu\", was \"virtual:2\"\n")));
  const Weights expected = weights(whole.run_folder), actual = weights(more.run_folder);
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(at::allclose(tensor, actual.at(name), 1e-4, 1e-5)) << name;
}

TEST_F(TrainFeatures, ResumesWithOtherRateOrMicroBatches) {
  const TrainResult part = train(recipe(), hooks(3));
  Notes notes;
  TrainHooks told = hooks();
  told.progress = &notes;
  resume(part.run_folder, {{"optimizer.learning_rate", "0.005"}, {"pipeline.micro_batches", "3"}},
         told);
  EXPECT_THAT(
      notes.lines,
      AllOf(
          HasSubstr("optimizer.learning_rate = 0.005, was 0.01: results will differ from here on"),
          HasSubstr("pipeline.micro_batches = 3, was 2: results will differ from here on")));
  EXPECT_EQ(steps(part.run_folder).back()["learning_rate"], 0.005);
}

}  // namespace
}  // namespace trestle::train
