#include "trestle/train/updater.h"

#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/optim/factory.h"
#include "trestle/pipeline/find_nonfinite.h"
#include "trestle/sharding/norm_over_ranks.h"
#include "trestle/train/deepspeed_options.h"

namespace trestle::train {
namespace {

std::optional<precision::GradientScaler> make_scaler(const TrainingSetup& setup) {
  if (setup.recipe.train.precision != "fp16") return std::nullopt;
  return precision::GradientScaler(setup.deepspeed ? deepspeed::scaler_options(*setup.deepspeed)
                                                   : precision::GradientScalerOptions());
}

bool is_sharded(const TrainingSetup& setup) { return setup.replicas && setup.replicas->divides(); }

// The groups over which the shards of the gradients lie.
std::vector<comm::Group> norm_groups(const TrainingSetup& setup) {
  return {setup.replicas->ranks().shard, setup.ranks.pipeline_group()};
}

// The parameter nearest to the loss whose gradient is infinite or NaN; "" where all are finite.
std::string nonfinite_gradient(const TrainingSetup& setup) {
  if (!is_sharded(setup)) return find_nonfinite_gradient(*setup.pipeline);
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
  if (setup.deepspeed && setup.deepspeed->schedule)
    rate_.follow(deepspeed::rate_options(*setup.deepspeed->schedule));
}

double Updater::finish_step(const StepPlace& place) {
  learning_rate_ = learning_rate_at(place);
  const bool finite = unscale_gradients(place);
  const double norm = clip_gradients();
  if (finite) {
    refuse_nonfinite(norm, place);
    step_optimizers(place);
  }
  setup_.pipeline->zero_grad();  // now, so that an evaluation has the gradients' memory too
  if (setup_.replicas) setup_.replicas->zero_grad();
  return norm;
}

void Updater::step_optimizers(const StepPlace& place) {
  const std::optional<double> momentum = rate_.momentum_at(place.step, place.epoch);
  for (StageOptimizer& stage : setup_.optimizers) {
    optim::set_learning_rate(*stage.optimizer, learning_rate_, stage.rate_factors);
    if (momentum) optim::set_momentum(*stage.optimizer, *momentum);
    stage.optimizer->step();
  }
}

// False where the step is skipped.
bool Updater::unscale_gradients(const StepPlace& place) {
  if (!scaler_) return true;
  constexpr double smallest_scale = 1.0 / 1024;
  const bool overflowed = setup_.ranks.any(!scaler_->unscale(
      setup_.replicas ? setup_.replicas->stepped() : setup_.pipeline->parameters()));
  if (overflowed) {
    scaler_->note_overflow();
    rate_.leave_out_step();
    if (scaler_->scale() <= smallest_scale) refuse_nonfinite(std::nan(""), place);
  }
  scaler_->update();
  return !overflowed;
}

// Returns the norm before clipping; NaN where it is not finite, and the gradients as they were.
double Updater::clip_gradients() {
  const double most = setup_.recipe.optimizer.clip_grad_norm;
  const bool sharded = is_sharded(setup_);
  if (most <= 0)
    return sharded ? sharding::norm_over_ranks(setup_.replicas->stepped(), norm_groups(setup_))
                   : setup_.pipeline->grad_norm();
  try {
    if (sharded)
      return sharding::clip_over_ranks(setup_.replicas->stepped(), norm_groups(setup_), most,
                                       {.error_if_nonfinite = true});
    return setup_.pipeline->clip_grad_norm(most, {.error_if_nonfinite = true});
  } catch (const StateError&) {
    return std::nan("");
  }
}

void Updater::refuse_nonfinite(double norm, const StepPlace& place) const {
  if (std::isfinite(norm)) return;
  const std::string where = nonfinite_gradient(setup_);
  throw Error(
      text("the gradients became infinite or NaN in step ", place.step + 1, " (epoch ",
           place.epoch + 1, "): ", where.empty() ? "each is finite, their norm is not" : where),
      {.hint = "Lower learning_rate in [optimizer]. The last checkpoint is intact."});
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
