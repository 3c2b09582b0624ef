#include "trestle/train/updater.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/options.h"
#include "trestle/optim/factory.h"
#include "trestle/pipeline/find_nonfinite.h"

namespace trestle::train {
namespace {

std::optional<precision::GradientScaler> make_scaler(const TrainingSetup& setup) {
  if (setup.recipe.train.precision != "fp16") return std::nullopt;
  return precision::GradientScaler(setup.deepspeed ? deepspeed::scaler_options(*setup.deepspeed)
                                                   : precision::GradientScalerOptions());
}

// The parameter nearest to the loss whose gradient is infinite or NaN; "" where all are finite.
std::string nonfinite_gradient(const TrainingSetup& setup) {
  if (!setup.replicas || !setup.replicas->is_sharded())
    return find_nonfinite_gradient(*setup.pipeline);
  std::string last;
  for (const std::string& found : setup.ranks.gather(setup.replicas->nonfinite_gradient()))
    if (!found.empty()) last = found;
  return last.empty() ? last : "the gradient of " + last + " has values that are infinite or NaN";
}

}  // namespace

Updater::Updater(TrainingSetup& setup)
    : setup_(setup),
      rate_(setup.recipe.optimizer,
            RunLength{.epochs = setup.recipe.train.epochs,
                      .steps_per_epoch = setup.plan.optimizer_steps_per_epoch(),
                      .max_steps = setup.recipe.train.max_steps}),
      scaler_(make_scaler(setup)) {
  if (setup.deepspeed && setup.deepspeed->schedule) rate_.follow(*setup.deepspeed->schedule);
}

void Updater::prepare(const StepPlace& place) {
  learning_rate_ = learning_rate_at(place);
  const std::optional<double> momentum = rate_.momentum_at(place.step, place.epoch);
  for (StageOptimizer& stage : setup_.optimizers) {
    optim::set_learning_rate(*stage.optimizer, learning_rate_, stage.rate_factors);
    if (momentum) optim::set_momentum(*stage.optimizer, *momentum);
  }
}

StepOptions Updater::options_of_batch(StepOptions::Update update) {
  if (scaler_) scale_ = scaler_->scale();
  return {.update = update,
          .scaler = scaler_ ? &*scaler_ : nullptr,
          .nonfinite = StepOptions::NonfiniteGradients::Keep};
}

void Updater::finish(const StepResult& result, const StepPlace& place) {
  constexpr double smallest_scale = 1.0 / 1024;
  if (!result.stepped) {
    if (!scaler_ || scale_ <= smallest_scale) refuse_nonfinite(place);
    rate_.skip_step();
  }
  // The gradients of a skipped step, and those that the engine keeps of a step's earlier batches.
  setup_.pipeline->zero_grad();
  if (setup_.replicas) setup_.replicas->zero_grad();
}

void Updater::refuse_nonfinite(const StepPlace& place) const {
  const std::string where = nonfinite_gradient(setup_);
  throw Error(
      text("the gradients became infinite or NaN in step ", place.step + 1, " (epoch ",
           place.epoch + 1, "): ", where.empty() ? "each is finite, their norm is not" : where),
      {.hint =
           "Lower learning_rate in [optimizer]. Checkpoints saved before this step are intact."});
}

void Updater::save(std::map<std::string, double>& numbers) const {
  numbers["last_learning_rate"] = learning_rate_;
  rate_.save(numbers);
  if (scaler_) numbers.merge(scaler_->state());
}

void Updater::load(const std::map<std::string, double>& numbers) {
  if (const auto found = numbers.find("last_learning_rate"); found != numbers.end())
    learning_rate_ = found->second;
  rate_.load(numbers);
  if (scaler_) scaler_->load_state(numbers);
}

}  // namespace trestle::train
