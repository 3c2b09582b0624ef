#include "trestle/pipeline/run_keys.h"

#include "trestle/base/keyed_seed.h"

namespace trestle::pipeline {
namespace {

// Stand for a layer in the seeds of inner pipelines and of evaluations.
constexpr std::int64_t inner_step = -1;
constexpr std::int64_t evaluation = -2;

}  // namespace

std::int64_t RunKeys::step_number() const {
  const std::lock_guard lock(mutex_);
  return step_number_;
}

void RunKeys::set_step_number(std::int64_t step, std::int64_t examples) {
  const std::lock_guard lock(mutex_);
  step_number_ = step;
  next_example_ = examples;
  evaluations_ = 0;
}

nn::RunKey RunKeys::next_step(std::int64_t first_micro_batch) {
  if (const auto inner = nn::LayerRun::next_inner_key())
    return {.seed = keyed_seed(inner->seed, static_cast<std::int64_t>(seed_), inner_step, 0),
            .step = inner->step,
            .micro_batch = first_micro_batch};
  const std::lock_guard lock(mutex_);
  evaluations_ = 0;
  if (first_micro_batch == 0) {
    ++step_number_;
    next_example_ = 0;
  }
  first_example_ = next_example_;
  return {.seed = seed_,
          .step = step_number_ - 1,
          .micro_batch = first_micro_batch,
          .example = first_example_};
}

void RunKeys::set_examples(std::int64_t of_all, std::int64_t of_earlier_replicas) {
  const std::lock_guard lock(mutex_);
  first_example_ = next_example_ + of_earlier_replicas;
  next_example_ += of_all;
}

nn::RunKey RunKeys::last_step(std::int64_t first_micro_batch) const {
  const std::lock_guard lock(mutex_);
  return {.seed = seed_,
          .step = step_number_ - 1,
          .micro_batch = first_micro_batch,
          .example = first_example_};
}

nn::RunKey RunKeys::next_evaluation() {
  if (const auto inner = nn::LayerRun::next_inner_key())
    return {.seed = keyed_seed(inner->seed, static_cast<std::int64_t>(seed_), evaluation, 0),
            .step = inner->step};
  const std::lock_guard lock(mutex_);
  return {.seed = keyed_seed(seed_, evaluations_++, evaluation, 0), .step = step_number_};
}

}  // namespace trestle::pipeline
