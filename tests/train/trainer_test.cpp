#include <gmock/gmock.h>

#include <cmath>
#include <utility>

#include "tests/train/training.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/data/split.h"
#include "trestle/data/tensor_dataset.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/predict/evaluator.h"
#include "trestle/view/chrome_trace.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Trainer : public Training {
 protected:
  // An MLP of three classes on "<prefix>x.npy" with 20 values a row and "<prefix>y.npy", all of
  // them to train on.
  recipe::Recipe mlp_on_arrays(const std::string& prefix) const {
    recipe::Recipe rows = recipe();
    rows.model.name = "mlp";
    rows.model.channels = 20;
    rows.model.classes = 3;
    rows.pipeline.balance = {};
    rows.data = {};
    rows.data.name = "arrays";
    rows.data.validation = 0;
    rows.data.input_array = (base_ / (prefix + "x.npy")).string();
    rows.data.target_array = (base_ / (prefix + "y.npy")).string();
    return rows;
  }
};

TEST_F(Trainer, WritesAllFilesOfRunFolder) {
  const TrainResult result = train(recipe(), hooks());
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.epochs, 2);
  EXPECT_EQ(result.steps, 6) << "40 examples: 3 whole batches of 12 an epoch";
  EXPECT_EQ(result.peaks.size(), 2u);
  EXPECT_GT(result.peaks[0].measured, 0);
  for (const char* name :
       {"recipe.toml", "metrics.jsonl", "timeline.json", "timeline.svg", "curve.svg",
        "environment.json", "best.safetensors", "last/index.json", "last/weights.safetensors",
        "last/optimizer.safetensors", "pictures/epoch_001.png", "pictures/epoch_002.png"})
    EXPECT_TRUE(fs::exists(result.run_folder / name)) << name;
  const auto best = checkpoint::read_tensors(result.run_folder / "best.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : best.tensors) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "in.weight", "in.bias", "norm.weight", "norm.bias", "norm.running_mean",
                         "norm.running_var", "norm.num_batches_tracked", "out.weight", "out.bias"));
}

TEST_F(Trainer, ShowsOptimizerInPredictedAndMeasuredTimeline) {
  const TrainResult result = train(recipe(), hooks());
  EXPECT_GT(result.optimizer_seconds, 0);
  EXPECT_GT(result.predicted_optimizer_seconds, 0);
  const auto panels = view::from_chrome_trace(read_file(result.run_folder / "timeline.json"));
  ASSERT_EQ(panels.size(), 2u) << "predicted and measured";
  for (const schedule::Timeline& panel : panels) {
    int norms = 0, steps = 0;
    for (const schedule::Event& event : panel.events) {
      norms += event.action.kind == schedule::Kind::Norm ? 1 : 0;
      steps += event.action.kind == schedule::Kind::Step ? 1 : 0;
    }
    EXPECT_EQ(norms, 2) << panel.title;
    EXPECT_EQ(steps, 2) << panel.title;
  }
}

TEST_F(Trainer, ResumesAtAnyStepToSameBits) {
  const TrainResult whole = train(recipe(), hooks());
  const std::string weights = read_file(whole.run_folder / "last/weights.safetensors");
  const std::string optimizer = read_file(whole.run_folder / "last/optimizer.safetensors");
  for (const std::int64_t steps : {1, 3, 4}) {
    TrainResult part = train(recipe(), hooks(steps));
    EXPECT_FALSE(part.finished);
    EXPECT_EQ(part.steps, steps);
    part = resume(part.run_folder, {}, hooks());
    EXPECT_TRUE(part.finished);
    EXPECT_EQ(read_file(part.run_folder / "last/weights.safetensors"), weights)
        << "stopped after " << steps;
    EXPECT_EQ(read_file(part.run_folder / "last/optimizer.safetensors"), optimizer)
        << "stopped after " << steps;
    EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder)) << "stopped after " << steps;
  }
}

TEST_F(Trainer, ClipsGradientsOverAllStages) {
  recipe::Recipe clipped = recipe();
  clipped.optimizer.name = "sgd";
  clipped.optimizer.learning_rate = 1;
  clipped.optimizer.clip_grad_norm = 1e-3;
  const TrainResult result = train(clipped, hooks(1));
  const auto after = checkpoint::read_tensors(result.run_folder / "last/weights.safetensors");
  std::map<std::string, at::Tensor> trained(after.tensors.begin(), after.tensors.end());
  const nn::Layers before =
      make_mine({.name = "mine", .seed = static_cast<std::uint64_t>(clipped.train.seed)});
  double squares = 0;
  for (const auto& [name, parameter] : before.named_parameters()) {
    squares += (trained.at(name) - parameter).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-5);  // one step of rate 1 along the clipped gradients
}

TEST_F(Trainer, ResumesForMoreEpochs) {
  recipe::Recipe shorter = recipe();
  shorter.train.epochs = 1;
  const TrainResult first = train(shorter, hooks());
  const TrainResult more = resume(first.run_folder, {{"train.epochs", "2"}}, hooks());
  const TrainResult whole = train(recipe(), hooks());
  EXPECT_EQ(read_file(more.run_folder / "last/weights.safetensors"),
            read_file(whole.run_folder / "last/weights.safetensors"));
  EXPECT_EQ(recipe_of(open_run_folder(more.run_folder)).train.epochs, 2);
}

TEST_F(Trainer, RefusesToResumeWithOtherRecipe) {
  const TrainResult first = train(recipe(), hooks(1));
  try {
    resume(first.run_folder, {{"train.batch", "6"}}, hooks());
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("'batch' in [train] cannot change during a run: it is 12, and 6"));
  }
  EXPECT_THROW(resume(base_ / "nowhere", {}, hooks()), UsageError);
}

// The same names and numbers of examples, but one pixel of one digit differs.
TEST_F(Trainer, RefusesToResumeWithOtherValues) {
  recipe::Recipe mine = recipe();
  const fs::path copy = base_ / "changed_digits";
  fs::copy(mine.data.folder, copy, fs::copy_options::recursive);
  mine.data.folder = copy.string();
  const TrainResult first = train(mine, hooks(1));
  std::string images = read_file(copy / "train-images-idx3-ubyte");
  images.back() = static_cast<char>(images.back() ^ 1);
  write_file(copy / "train-images-idx3-ubyte", images);
  try {
    resume(first.run_folder, {}, hooks());
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the examples have other values"));
  }
  images.back() = static_cast<char>(images.back() ^ 1);
  write_file(copy / "train-images-idx3-ubyte", images);
  EXPECT_TRUE(resume(first.run_folder, {}, hooks()).finished);
}

TEST_F(Trainer, NeverOverwritesEarlierRun) {
  const TrainResult first = train(recipe(), hooks(1));
  const std::string before = read_file(first.run_folder / "last/weights.safetensors");
  const TrainResult second = train(recipe(), hooks(2));
  EXPECT_NE(first.run_folder, second.run_folder);
  EXPECT_EQ(read_file(first.run_folder / "last/weights.safetensors"), before);
}

TEST_F(Trainer, DivergingLossIsError) {
  recipe::Recipe wild = recipe();
  wild.optimizer.name = "sgd";
  wild.optimizer.learning_rate = 1e6;
  wild.optimizer.weight_decay = 1e6;
  wild.train.epochs = 30;
  try {
    train(wild, hooks());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the loss became"));
    EXPECT_THAT(error.what(), HasSubstr("learning_rate"));
  }
}

// A file of NumPy: `type` as "<f4", `shape` as "(3, 2)".
void write_npy(const fs::path& file, const std::string& type, const std::string& shape,
               const at::Tensor& values) {
  std::string header =
      text("{'descr': '", type, "', 'fortran_order': False, 'shape': ", shape, "}");
  header += std::string((64 - (10 + header.size() + 1) % 64) % 64, ' ') + "\n";
  const std::string length = {static_cast<char>(header.size() & 255),
                              static_cast<char>(header.size() >> 8)};
  const at::Tensor whole = values.contiguous();
  const std::string bytes(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
  write_file(file, text(std::string("\x93NUMPY\x01\0", 8), length, header, bytes));
}

// A message names the cause: the data, not the learning rate.
TEST_F(Trainer, NonfiniteAndNegativeDataAreNamedAsTheCause) {
  recipe::Recipe rows = mlp_on_arrays("");
  rows.train.batch = 8;
  at::Tensor x = at::rand({8, 20}), y = at::arange(8, at::kLong).remainder(3);
  const auto message = [&]() -> std::string {
    write_npy(base_ / "x.npy", "<f4", "(8, 20)", x);
    write_npy(base_ / "y.npy", "<i8", "(8,)", y);
    try {
      train(rows, hooks());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(message(), "nothing was thrown");
  x[5][1] = NAN;
  EXPECT_THAT(message(),
              AllOf(HasSubstr("input 0 has values that are infinite or NaN"),
                    HasSubstr("The inputs of the data have values that are infinite or NaN, "
                              "in the examples 5. Correct them"),
                    Not(HasSubstr("learning_rate"))));
  x[5][1] = 0;
  y.fill_(-1);
  EXPECT_THAT(message(), AllOf(HasSubstr("negative class"), HasSubstr("Target -1"),
                               Not(HasSubstr("Set 'classes'"))));
  EXPECT_THAT(text(fs::exists(base_ / "runs" / text(rows.name, "_2"))), HasSubstr("0"))
      << "a failed start leaves no run folder";
  // The dry run refuses what the training would refuse.
  EXPECT_THROW(plan_run(rows, hooks()), UsageError);
}

// A run must not end with "validation loss nan" as if all were well.
TEST_F(Trainer, NonfiniteValidationIsAnErrorThatNamesItsCause) {
  recipe::Recipe rows = mlp_on_arrays("v");
  rows.data.validation = 0.25;
  rows.train.batch = 4;
  rows.train.epochs = 1;
  const auto kept = data::random_split(16, 0.25, static_cast<std::uint64_t>(rows.data.split_seed));
  at::Tensor x = at::rand({16, 20}), y = at::arange(16, at::kLong).remainder(3);
  const auto write = [&] {
    write_npy(base_ / "vx.npy", "<f4", "(16, 20)", x);
    write_npy(base_ / "vy.npy", "<i8", "(16,)", y);
  };
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  write();
  const fs::path good = train(rows, hooks()).run_folder;
  const std::int64_t bad = kept.validation.at(2);
  x[bad][1] = INFINITY;
  write();
  const auto names_it =
      AllOf(HasSubstr("the validation loss became "),
            HasSubstr("the inputs of the data have values that are infinite or NaN, in the "
                      "examples " +
                      std::to_string(bad)),
            HasSubstr("Correct them"));
  EXPECT_THAT(message([&] { train(rows, hooks()); }), names_it);
  EXPECT_THAT(message([&] { evaluate({.run = good, .models = hooks().models}); }), names_it);
  rows.devices.use = "cpu";
  EXPECT_THAT(message([&] { on_ranks(2, rows); }), names_it) << "stages over ranks";
  rows.mesh.replicate = 2;
  EXPECT_THAT(message([&] { on_ranks(2, rows); }), names_it) << "replicas";
}

// Otherwise the first epoch would be lost.
TEST_F(Trainer, MetricThatDoesNotFitIsRefusedBeforeTheFirstStep) {
  recipe::Recipe real = mlp_on_arrays("r");
  real.data.validation = 0.5;
  real.train.batch = 4;
  real.train.loss = "mean_squared_error";
  write_npy(base_ / "rx.npy", "<f4", "(16, 20)", at::rand({16, 20}));
  write_npy(base_ / "ry.npy", "<f4", "(16, 3)", at::rand({16, 3}));
  const auto refusal = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const auto names_metric =
      AllOf(HasSubstr("'metric' in [train]: accuracy cannot rate the output of the model"),
            HasSubstr("got [1, 3] and [1, 3]"), HasSubstr("--validation 0"));
  EXPECT_THAT(refusal([&] { train(real, hooks()); }), names_metric);
  EXPECT_FALSE(fs::exists(base_ / "runs" / real.name)) << "before the first step";
  recipe::Recipe over = real;
  over.devices.use = "cpu";
  EXPECT_THAT(refusal([&] { on_ranks(2, over); }), names_metric);
  over.mesh.replicate = 2;
  EXPECT_THAT(refusal([&] { on_ranks(2, over); }), names_metric);
  real.data.validation = 0;
  EXPECT_TRUE(train(real, hooks()).finished) << "no validation, no metric";
}

// A loss over nothing is 0, which would seem perfect.
TEST_F(Trainer, IgnoredTargetsAreCountedAndNeverAllOfThem) {
  recipe::Recipe rows = mlp_on_arrays("i");
  rows.train.batch = 4;
  rows.train.epochs = 1;
  at::Tensor y = at::arange(8, at::kLong).remainder(3);
  write_npy(base_ / "ix.npy", "<f4", "(8, 20)", at::rand({8, 20}));
  const auto write = [&] { write_npy(base_ / "iy.npy", "<i8", "(8,)", y); };
  const auto notes_of_run = [&] {
    Notes notes;
    TrainHooks own = hooks();
    own.progress = &notes;
    try {
      train(rows, own);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return notes.lines;
  };
  write();
  EXPECT_THAT(notes_of_run(), Not(HasSubstr("ignored")));
  y[2] = y[5] = -100;
  write();
  EXPECT_THAT(notes_of_run(), HasSubstr("targets   2 of 8 targets are ignored: they are -100"));
  const data::CheckReport some = check_data(rows, {});
  EXPECT_TRUE(some.ok());
  EXPECT_THAT(join(some.notes, "\n"), HasSubstr("targets: 2 of 8 targets are ignored"));
  y.fill_(-100);
  write();
  EXPECT_THAT(notes_of_run(), HasSubstr("8 of 8 targets are ignored"));
  EXPECT_FALSE(check_data(rows, {}).ok());
  // The same for a data set that cannot tell before.
  recipe::Recipe digits = recipe();
  digits.name += "_digits";
  digits.data.name = "unlabelled";
  digits.train.loss = "cross_entropy";
  digits.train.metric = "accuracy";
  TrainHooks own = hooks();
  own.user_parts.data_sets["unlabelled"] = [](const data::DataOptions&) {
    return data::OwnData{.training = std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{
                             at::rand({24, 1, 28, 28}), at::full({24}, -100, at::kLong)})};
  };
  try {
    train(digits, own);
    FAIL() << "nothing was trained";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("every target of epoch 1 is ignored (-100)"));
  }
}

TEST_F(Trainer, MisfitsNameTheKeyThatHelps) {
  const auto refusal = [&](const recipe::Recipe& wanted) -> std::string {
    try {
      train(wanted, hooks());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  recipe::Recipe numbers = mlp_on_arrays("n");
  numbers.model.channels = 1;
  numbers.train.batch = 4;
  write_npy(base_ / "nx.npy", "<f4", "(8,)", at::rand({8}));
  write_npy(base_ / "ny.npy", "<i8", "(8,)", at::arange(8, at::kLong).remainder(3));
  EXPECT_THAT(refusal(numbers),
              AllOf(HasSubstr("inputs of one number each"), HasSubstr("[N, 1] instead of [N]")));
  recipe::Recipe stages = recipe();
  stages.pipeline.balance = {};
  stages.pipeline.recompute = {"always", "never", "never"};
  EXPECT_THAT(refusal(stages),
              AllOf(HasSubstr("'recompute' in [pipeline] has 3 entries, and the pipeline 2 stages"),
                    Not(HasSubstr("recompute_per_stage"))));
  recipe::Recipe devices = recipe();
  devices.devices.use = "virtual:1x";
  EXPECT_THAT(refusal(devices), AllOf(HasSubstr("'virtual:1x' has no size of memory"),
                                      HasSubstr("'use' of [devices]")));
  recipe::Recipe first = recipe();
  first.train.epochs = 1;
  const fs::path run = train(first, hooks()).run_folder;
  first.model.weights = run.string();
  EXPECT_THAT(refusal(first), AllOf(HasSubstr("is the folder of a run"),
                                    HasSubstr((run / "best.safetensors").string())));
  first.model.weights = (run / "last").string();
  EXPECT_EQ(refusal(first), "nothing was thrown") << "as the message says";
}

// Pictures are no results.
TEST_F(Trainer, PictureThatCannotBeWrittenIsAWarning) {
  recipe::Recipe blocked = recipe();
  blocked.train.epochs = 1;
  Notes notes;
  TrainHooks own = hooks();
  own.progress = &notes;
  own.begins = [] {};
  own.should_stop = [&, done = false]() mutable {  // after the folder was made
    const fs::path pictures = fs::path(blocked.train.runs) / blocked.name / "pictures";
    if (std::exchange(done, true)) return false;
    fs::remove_all(pictures);
    write_file(pictures, "in the way");
    return false;
  };
  const TrainResult result = train(blocked, own);
  EXPECT_TRUE(result.finished);
  EXPECT_TRUE(fs::exists(result.run_folder / "last/index.json"));
  EXPECT_THAT(notes.lines, HasSubstr("a picture was not written, the training continues"));
}

TEST_F(Trainer, PlateauLowersLearningRate) {
  recipe::Recipe flat = recipe();
  flat.optimizer.learning_rate = 1e-6;
  flat.optimizer.plateau = true;
  flat.optimizer.plateau_patience = 0;
  flat.optimizer.plateau_factor = 0.5;
  flat.train.epochs = 3;
  const TrainResult result = train(flat, hooks());
  EXPECT_THAT(metrics(result.run_folder), HasSubstr("\"learning_rate\":5e-07"));
}

TEST_F(Trainer, PlansWithoutRunFolder) {
  const RunPlan plan = plan_run(recipe(), hooks());
  EXPECT_EQ(plan.layers, 5);
  EXPECT_EQ(plan.stages.size(), 2u);
  EXPECT_GT(plan.predicted_seconds, 0);
  EXPECT_GT(plan.stages[0].predicted_peak, 0);
  EXPECT_FALSE(fs::exists(fs::path(recipe().train.runs) / recipe().name));
}

TEST_F(Trainer, FindsRecipeErrorsBeforeCreatingRunFolder) {
  recipe::Recipe bad = recipe();
  bad.pipeline.balance = {2, 2};
  EXPECT_THROW(train(bad, hooks()), UsageError);
  bad = recipe();
  bad.train.loss = "dice";
  bad.pipeline.schedule = "1f1b";
  EXPECT_THROW(train(bad, hooks()), UsageError);
  EXPECT_FALSE(fs::exists(fs::path(recipe().train.runs) / recipe().name));
}

}  // namespace
}  // namespace trestle::train
