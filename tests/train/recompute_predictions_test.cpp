#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/language_training.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/measure.h"

// Predicted peaks beside measured ones, where 'checkpoint' in [pipeline] recomputes layers.
namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

class RecomputePredictions : public LanguageTraining {
 protected:
  // Activations inside the blocks are most of the memory.
  static recipe::Recipe deep_recipe(const std::string& model, int devices) {
    recipe::Recipe recipe = language_recipe(model);
    recipe.name += text("_", devices);
    recipe.model.width = 64;
    recipe.transformer.layers = 6;
    recipe.transformer.context = 64;
    recipe.devices.use = text("virtual:", devices);
    recipe.pipeline.balance = devices == 1   ? std::vector<std::int64_t>{9}
                              : devices == 2 ? std::vector<std::int64_t>{5, 4}
                                             : std::vector<std::int64_t>{3, 3, 3};
    recipe.pipeline.micro_batches = 3;
    recipe.pipeline.checkpoint = {"layers"};
    recipe.train.batch = 6;
    recipe.train.epochs = 3;  // of one batch each: the second step has the optimizer's state
    recipe.train.max_steps = 3;
    return recipe;
  }

  static std::vector<Bytes> dry_run(const recipe::Recipe& recipe) {
    std::vector<Bytes> peaks;
    for (const RunPlan::Stage& stage : plan_on_paper(recipe, {}).stages)
      peaks.push_back(stage.predicted_peak);
    return peaks;
  }

  // The bounds that other predictions of a dry run are held to
  // (LanguageTraining.PredictsPeaksWithTiedWeights).
  static void expect_near(const std::vector<Bytes>& predicted, const std::vector<Bytes>& measured) {
    ASSERT_EQ(predicted.size(), measured.size());
    for (std::size_t stage = 0; stage < predicted.size(); ++stage)
      EXPECT_THAT(static_cast<double>(predicted[stage]) / static_cast<double>(measured[stage]),
                  AllOf(Ge(0.95), Le(1.3)))
          << "stage " << stage << ": " << predicted[stage] << " for " << measured[stage];
  }

  static std::vector<Bytes> measured(const recipe::Recipe& recipe) {
    std::vector<Bytes> peaks;
    for (const DevicePeak& peak : train(recipe, {}).peaks) peaks.push_back(peak.measured);
    return peaks;
  }

  // The prediction is near the measured peaks, and without 'checkpoint' it would not be.
  static void expect_predicted(const recipe::Recipe& recipe) {
    const std::vector<Bytes> peaks = measured(recipe);
    expect_near(dry_run(recipe), peaks);
    recipe::Recipe kept = recipe;
    kept.pipeline.checkpoint = {};
    const std::vector<Bytes> without = dry_run(kept);
    EXPECT_GT(static_cast<double>(without[0]) / static_cast<double>(peaks[0]), 1.4);
  }
};

TEST_F(RecomputePredictions, EqualPeaksOfGptWithTiedHead) {
  for (const int devices : {1, 2, 3}) {
    SCOPED_TRACE(devices);
    expect_predicted(deep_recipe("gpt2", devices));
  }
}

TEST_F(RecomputePredictions, EqualPeaksOfStagesRecomputedToo) {
  recipe::Recipe recipe = deep_recipe("gpt2", 2);
  recipe.pipeline.recompute = {"always"};
  expect_near(dry_run(recipe), measured(recipe));
}

TEST_F(RecomputePredictions, EqualPeaksOfAdaptersBesideFrozenWeights) {
  for (const char* type : {"fp32", "bf16", "int8"}) {
    SCOPED_TRACE(type);
    recipe::Recipe recipe = deep_recipe("llama", 2);
    recipe.name += type;
    recipe.adapters.rank = 4;
    recipe.adapters.targets = {"q_proj", "v_proj", "gate_proj", "down_proj"};
    recipe.adapters.frozen_type = type;
    recipe.optimizer.no_weight_decay = {};
    expect_predicted(recipe);
  }
}

// Skips, batch norms, and a pattern that names some layers.
TEST_F(RecomputePredictions, EqualPeaksOfUNet) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"layers"}, std::vector<std::string>{"in", "down1", "up4_conv"}}) {
    SCOPED_TRACE(names.size());
    recipe::Recipe recipe = Training::recipe();
    recipe.name += text(names.size());
    recipe.model.name = "unet";
    recipe.model.width = 8;
    recipe.model.classes = 2;
    recipe.data = {};
    recipe.data.name = "carvana";
    recipe.data.images = (base_ / "cars/train_hq").string();
    recipe.data.masks = (base_ / "cars/train_masks").string();
    recipe.data.synthesize = 12;
    recipe.pipeline.balance = {13, 9};
    recipe.pipeline.recompute = {"never"};
    recipe.pipeline.checkpoint = names;
    recipe.train.batch = 8;
    std::vector<Bytes> peaks;
    for (const DevicePeak& peak : measure_steps(recipe, {.warm_up = 1, .steps = 1}).peaks)
      peaks.push_back(peak.measured);
    expect_near(dry_run(recipe), peaks);
  }
}

// The first rank measures layers that the other rank makes.
TEST_F(RecomputePredictions, RanksCutRecomputedLayersByTime) {
  recipe::Recipe recipe = language_recipe();
  recipe.mesh.pipeline = 2;
  recipe.pipeline.balance = {};
  recipe.pipeline.checkpoint = {"layers"};
  recipe.train.max_steps = 1;
  EXPECT_EQ(on_ranks(2, recipe, {}).steps, 1);
}

// The second forward is a part of the backward.
TEST_F(RecomputePredictions, HaveTheTimeOfTheSecondForward) {
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  recipe::Recipe recipe = deep_recipe("gpt2", 1);
  recipe::Recipe kept = recipe;
  kept.pipeline.checkpoint = {};
  double added = 0, forwards = 1;
  // Other programs can hold up a few milliseconds: one round without them is enough.
  for (int round = 0; round < 5 && added <= forwards / 4; ++round) {
    const plan::LayerProfile twice = measure_layers(recipe, *silent, {}).profile;
    const plan::LayerProfile once = measure_layers(kept, *silent, {}).profile;
    EXPECT_EQ(twice.checkpoint, std::vector<std::string>{"layers"});
    added = forwards = 0;
    for (std::size_t block = 1; block < 7; ++block) {
      added += twice.layers[block].backward - once.layers[block].backward;
      forwards += once.layers[block].forward;
      // The bytes that a recomputed block keeps besides its input, and those that it makes again.
      EXPECT_LT(twice.layers[block].inner, once.layers[block].inner / 10);
      EXPECT_GE(twice.layers[block].transient, once.layers[block].inner);
    }
  }
  EXPECT_GT(added, forwards / 4);  // of a busy machine
}

}  // namespace
}  // namespace trestle::train
