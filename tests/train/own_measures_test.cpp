// User-defined losses and metrics that return no number.
#include <cmath>
#include <memory>

#include "tests/train/training.h"

namespace trestle::train {
namespace {

class UserDefinedMeasures : public Training {};

// A metric may be NaN, for instance a correlation of equal predictions.
TEST_F(UserDefinedMeasures, NanMetricIsWorseThanAnyOther) {
  recipe::Recipe odd = recipe();
  odd.train.epochs = 1;
  odd.train.metric = "odd";
  odd.train.patience = 2;
  odd.train.keep_best = 2;
  TrainHooks own = hooks();
  const auto value = std::make_shared<double>(std::nan(""));
  own.user_parts.metrics["odd"] = [value](const at::Tensor&, const at::Tensor&) -> nn::Tally {
    return {*value, 1};
  };
  const TrainResult first = train(odd, own);
  *value = 0.5;
  const TrainResult second = resume(first.run_folder, {{"train.epochs", "2"}}, own);
  EXPECT_EQ(second.best_epoch, 2);
  EXPECT_EQ(second.best_metric, 0.5);
  *value = std::nan("");
  EXPECT_EQ(resume(first.run_folder, {{"train.epochs", "3"}}, own).best_epoch, 2);
  *value = 0.75;
  const TrainResult last = resume(first.run_folder, {{"train.epochs", "4"}}, own);
  EXPECT_EQ(last.epochs, 4) << "patience counts from the best";
  EXPECT_EQ(last.best_epoch, 4);
  EXPECT_TRUE(fs::exists(first.run_folder / "best/epoch_004.safetensors"));
  EXPECT_TRUE(fs::exists(first.run_folder / "best/epoch_002.safetensors"));
}

// The mean over nothing is 0 / 0, as torch's is with all targets at ignore_index.
TEST_F(UserDefinedMeasures, SkipBatchesOfWeightZero) {
  recipe::Recipe half = recipe();
  half.train.epochs = 1;
  half.train.batch = 1;
  half.train.loss = "small_digits";
  TrainHooks own = hooks();
  own.user_parts.losses["small_digits"] = [] {
    return nn::additive(
        "small_digits",
        [](const at::Tensor& output, const at::Tensor& target) {
          return at::cross_entropy_loss(output, target.masked_fill(target.ge(5), -100));
        },
        [](const at::Tensor& target) { return target.lt(5).sum().item<double>(); });
  };
  const TrainResult run = train(half, own);
  double sum = 0;
  int counted = 0;
  for (const auto& step : steps(run.run_folder)) {
    sum += step["loss"].get<double>();
    counted += step["loss"].get<double>() != 0 ? 1 : 0;
  }
  const auto epoch = lines(run.run_folder, "training_loss").at(0);
  EXPECT_GT(counted, 0);
  EXPECT_LT(counted, 40);
  EXPECT_NEAR(epoch["training_loss"].get<double>(), sum / counted, 1e-9);
  ASSERT_TRUE(epoch["validation_loss"].is_number());
  EXPECT_GT(epoch["validation_loss"].get<double>(), 0);
}

}  // namespace
}  // namespace trestle::train
