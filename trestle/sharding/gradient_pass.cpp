// How a pass begins, and what becomes of one whose backward throws.
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/sharding/gradient_reducer.h"

namespace trestle::sharding {

// What a backward keeps as long as it runs. Where it throws, its end is noticed here: the other ranks wait.
struct GradientReducer::BackwardLife {
  explicit BackwardLife(std::weak_ptr<GradientReducer> owner) : owner(std::move(owner)) {}
  BackwardLife(const BackwardLife&) = delete;
  BackwardLife& operator=(const BackwardLife&) = delete;
  ~BackwardLife() {
    const auto self = owner.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->pass_ && self->pass_->in_backward && self->pass_->backward.expired())
      self->give_up_pass();
  }
  std::weak_ptr<GradientReducer> owner;
};

void GradientReducer::prepare_for_backward(bool after_gradients) {
  const std::lock_guard lock(mutex_);
  if (pass_ && !(pass_->in_backward && pass_->backward.expired())) return;
  give_up_pass();
  const GradientHooks::Use use = hooks_.use_in_this_backward();
  if (use == GradientHooks::Use::Returns && sync_ && ranks_.all.size() > 1) {
    throw StateError(
        "torch::autograd::grad() of a sharded model's parameters would give gradients of this "
        "rank's samples alone",
        {.hint = "Call backward(), or take them inside no_sync() if that is what they are for."});
  }
  try {
    begin_pass(use == GradientHooks::Use::Accumulates, after_gradients);
  } catch (...) {
    give_up_pass();
    throw;
  }
  auto life = std::make_shared<BackwardLife>(weak_from_this());
  pass_->in_backward = true;
  pass_->backward = life;
  torch::autograd::Engine::get_default_engine().queue_callback([life] {
    if (const auto self = life->owner.lock()) self->end();
  });
}

// Parameters that are not trained any more take no part, but for the gradient that they still have.
void GradientReducer::begin_pass(bool accumulates, bool after_gradients) {
  std::exchange(unchecked_header_, {}).check();
  pass_.emplace();
  pass_->accumulates = accumulates;
  pass_->sync = sync_ && accumulates;
  if (!accumulates) return;
  if (announce_) announce_(pass_->sync, weight_.has_value(), after_gradients);
  ++backwards_;
  pass_->entry = recorder_.begin(ShardEvent::What::Backward, -1);
  pass_->groups.resize(groups_.size());
  begin_piece();
  if (pass_->sync || !sums_)
    pass_->header =
        BackwardHandshake(ranks_.all, {.backward = place(),
                                       .sync = sync_,
                                       .weight = sync_ ? weight_ : std::optional<double>(),
                                       .trained_hash = trained_hash()});
  for (const std::size_t g : trained_) {
    FlatParameterGroup& flat = *groups_[g];
    flat.note_step();
    flat.drop_zeroed();
    flat.forget_own_gradients();
    if (pass_->sync) flat.keep_shard_gradients();
    if (pass_->sync || options_.level == ShardLevel::None) flat.renew_gradients();
    Reduction& reduction = pass_->groups[g];
    if (options_.level == ShardLevel::None && pass_->sync && !has_unreduced_ && weight_ == 0.0)
      for (const auto& [name, parameter] : flat.parameters())
        reduction.before.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                              : at::Tensor());
    reduction.fired.assign(flat.size(), false);
    reduction.gradients.assign(flat.size(), 0);
    for (std::size_t i = 0; i < flat.size(); ++i) {
      if (flat.parameter(i).requires_grad() && !(pass_->sync && is_unused(g, i)))
        ++reduction.missing;
      else if (pass_->sync)
        reduction.fired[i] = fill(g, i);
    }
  }
  has_unreduced_ = has_unreduced_ || !pass_->sync || pass_->more_pieces;
  if (steps_ == 0 && pass_->sync) observed_.clear();
}

void GradientReducer::set_recorder(ShardRecorder recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
  recorder_.set_step(steps_);
}

std::uint32_t GradientReducer::trained_hash() const {
  std::uint32_t hash = 2166136261U;
  for (const std::size_t g : trained_)
    for (const auto& [name, parameter] : groups_[g]->parameters())
      hash = (hash ^ (parameter.requires_grad() ? 1U : 2U)) * 16777619U;
  return hash;
}

void GradientReducer::give_up_pass() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const bool others_wait = pass_->sync && ranks_.all.size() > 1;
  pass_.reset();
  give_up_pieces();
  try {
    if (others_wait)
      ranks_.all.fail("a backward whose gradients are reduced over ranks did not come to its end");
    if (observer_) observer_->pass_ended();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Communication has failed before, and says so to whoever uses it next.
  }
}

}  // namespace trestle::sharding
