#include "trestle/sharding/gradient_reducer.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

comm::Group unchecked(const comm::Group& group) {
  return group.valid() ? group.with_check(comm::Check::Off) : group;
}

// view = gradient * share, in one pass over memory where the dtypes are the same. Otherwise it is multiplied in the wider
// one, of bf16 and fp16 in fp32: what is in the range of fp16 only when it is divided is not infinite before.
void put_scaled(at::Tensor view, const at::Tensor& gradient, bool same, double share) {
  const auto type = c10::promoteTypes(gradient.scalar_type(), view.scalar_type());
  if (gradient.scalar_type() != view.scalar_type() && type != view.scalar_type()) {
    view.copy_(gradient.to(type).mul(share));
  } else if (gradient.scalar_type() != view.scalar_type()) {
    view.copy_(gradient).mul_(share);
  } else if (same) {
    view.mul_(share);
  } else {
    at::mul_out(view, gradient, at::native::wrapped_scalar_tensor(share));
  }
}

// Reductions know no complex numbers, whose parts are summed alike.
at::Tensor as_real(const at::Tensor& flat) {
  return flat.is_complex() ? at::view_as_real(flat).view({-1}) : flat;
}

}  // namespace

GradientReducer::GradientReducer(std::vector<std::shared_ptr<FlatParameterGroup>> groups,
                                 RankGroups ranks, const ShardOptions& options)
    : groups_(std::move(groups)), ranks_(std::move(ranks)), options_(options) {
  unchecked_ = {.all = unchecked(ranks_.all),
                .shard = unchecked(ranks_.shard),
                .gathers = {},
                .replicate = unchecked(ranks_.replicate)};
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g]->trained()) trained_.push_back(g);
  if (const int pieces = options_.reproducible.pieces; pieces > 0)
    pieces_.emplace(pieces / ranks_.all.size(), groups_.size());
}

void GradientReducer::watch() {
  for (const std::size_t g : trained_)
    for (std::size_t i = 0; i < groups_[g]->size(); ++i)
      hooks_.add(groups_[g]->parameter(i), [weak = weak_from_this(), g, i] {
        if (const auto self = weak.lock()) self->on_gradient(g, i);
      });
}

void GradientReducer::check_watched() const {
  std::size_t number = 0;
  for (const std::size_t g : trained_) {
    for (std::size_t i = 0; i < groups_[g]->size(); ++i) {
      if (hooks_.attached(number++, groups_[g]->parameter(i)) && groups_[g]->in_place(i)) continue;
      throw StateError(
          text("parameter '", groups_[g]->name(i),
               "' was moved, cast or given other data after the model was sharded"),
          {.hint = "Do so before (ShardOptions::device moves it), and copy weights with "
                   "Sharded::load_state()."});
    }
  }
}

void GradientReducer::go_on_from(GradientReducer& before) {
  before.hooks_.clear();
  recorder_ = before.recorder_;
  hook_ = std::move(before.hook_);
  announce_ = std::move(before.announce_);
  after_pass_ = std::move(before.after_pass_);
  steps_ = before.steps_;
  backwards_ = before.backwards_;
  reductions_ = before.reductions_;
  reduced_bytes_ = before.reduced_bytes_;
  asked_for_unused_ = before.asked_for_unused_;
  reduced_over_replicas_ = before.reduced_over_replicas_;
  sync_ = before.sync_;
  weight_ = before.weight_;
  unchecked_header_ = before.unchecked_header_;
  has_unreduced_ = before.has_unreduced_;
  first_step_ = before.first_step_;
}

void GradientReducer::pass_without_gradients() {
  const std::lock_guard lock(mutex_);
  begin_pass();
  end();
}

void GradientReducer::pass_without_samples(const std::function<void()>& meanwhile) {
  const std::lock_guard lock(mutex_);
  begin_pass();
  pass_->has_samples = false;
  meanwhile();
  end();
}

void GradientReducer::on_gradient(std::size_t group, std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (!pass_) arm_late(group, index);
  if (!pass_->accumulates || !groups_[group]->parameter(index).requires_grad()) return;
  Reduction& reduction = pass_->groups[group];
  if (!pass_->sync) groups_[group]->add_to_kept(index);
  if (pass_->sync) count_gradient(group, index);
  if (reduction.fired[index]) {
    if (!pass_->sync) return;
    if (reduction.begun) {
      throw StateError(
          text("parameter '", groups_[group]->name(index),
               "' got a second gradient in one backward, after the first one began to be reduced"),
          {.hint =
               "A backward inside a backward does that; make all but the last one in no_sync()."});
    }
    const at::NoGradGuard no_grad;
    at::Tensor& gradient = groups_[group]->parameter(index).mutable_grad();
    if (!groups_[group]->grad_is_view(index)) {
      groups_[group]->gradient_view(index).add_(gradient, own_factor(group));
      gradient.reset();
    }
    return;
  }
  if (pass_->sync) {
    put_gradient(group, index);
  } else if (options_.level == ShardLevel::None) {
    keep_in_bucket(group, index);
  }
  reduction.fired[index] = true;
  if (steps_ == 0 && pass_->sync) observed_.emplace_back(group, index);
  if (--reduction.missing > 0) return;
  if (observer_) observer_->gradients_complete(group);
  recorder_.look();
  if (pass_->sync) begin_ready();
}

// Where gradients add up before they are reduced: in their place already, so that they are there once.
void GradientReducer::keep_in_bucket(std::size_t group, std::size_t index) {
  const at::NoGradGuard no_grad;
  FlatParameterGroup& flat = *groups_[group];
  at::Tensor& gradient = flat.parameter(index).mutable_grad();
  if (flat.grad_is_view(index) || gradient.layout() != at::kStrided ||
      gradient.scalar_type() != flat.gradients().scalar_type())
    return;
  gradient = flat.gradient_view(index).copy_(gradient).variable_data();
}

void GradientReducer::put_gradient(std::size_t group, std::size_t index) {
  const at::NoGradGuard no_grad;
  FlatParameterGroup& flat = *groups_[group];
  at::Tensor& gradient = flat.parameter(index).mutable_grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw UsageError(text("the gradient of parameter '", flat.name(index), "' is sparse"),
                     {.hint = "Gradients that are reduced over ranks are dense: leave out the "
                              "embedding's 'sparse' option."});
  }
  if (gradient.defined() && gradient.requires_grad()) {
    throw UsageError(
        text("the gradient of parameter '", flat.name(index), "' has a graph (create_graph)"),
        {.hint =
             "What is reduced over ranks cannot be differentiated: take a gradient that is part "
             "of the loss with torch::autograd::grad()."});
  }
  const double factor = own_factor(group);
  if (flat.has_kept(index)) {
    flat.add_to_kept(index);
    put_scaled(flat.gradient_view(index), flat.take_kept(index), false, factor);
    return;
  }
  put_scaled(flat.gradient_view(index), gradient, flat.grad_is_view(index), factor);
  if (!flat.grad_is_view(index)) gradient.reset();
}

// A gradient that does not come in this backward: what earlier ones have left in grad(), which it returns true for, or zero.
bool GradientReducer::fill(std::size_t group, std::size_t index) {
  const at::NoGradGuard no_grad;
  if (groups_[group]->parameter(index).grad().defined() || groups_[group]->has_kept(index)) {
    put_gradient(group, index);
    return true;
  }
  groups_[group]->gradient_view(index).zero_();
  return false;
}

void GradientReducer::begin_ready() {
  while (pass_->next < trained_.size()) {
    const std::size_t group = trained_[pass_->next];
    if (pass_->groups[group].missing > 0) break;
    bound_in_flight();
    begin(group);
    ++pass_->next;
  }
  begin_over_replicas(false);
}

// Where whole gradients are let go once they are reduced: a rank that is ahead waits, instead of holding all of them. Where
// they stay, the reduced pieces go into their own place in them, instead of being held besides. Not for the sum over
// replicas, whose pieces are small: a rank that is at its end already asks there first which parameters were used. And not
// where a rank that passes over units gathers all of them before it begins their reductions.
void GradientReducer::bound_in_flight() {
  constexpr std::size_t most = 2;
  if (options_.level == ShardLevel::None || pass_->next < most) return;
  const bool may_pass_over = options_.unused_parameters != UnusedParameters::Refuse;
  if (may_pass_over && options_.level == ShardLevel::Parameters) return;
  const std::size_t place = pass_->next - most;
  pass_->groups[trained_[place]].over_pieces.wait();
  if (place >= pass_->next_over) put_in_place(trained_[place]);
}

void GradientReducer::put_in_place(std::size_t group) {
  Reduction& reduction = pass_->groups[group];
  if (options_.level == ShardLevel::OptimizerState && reduction.reduced.defined())
    reduction.reduced = groups_[group]->put_piece(reduction.reduced);
}

void GradientReducer::begin(std::size_t group) {
  FlatParameterGroup& flat = *groups_[group];
  Reduction& reduction = pass_->groups[group];
  reduction.begun = true;
  if (!complete_pieces(group)) return;
  ++reductions_;
  reduced_bytes_ += static_cast<Bytes>(flat.gradients().nbytes());
  if (hook_) return begin_hook(group);
  if (options_.level == ShardLevel::None) {
    reduction.work = unchecked_.all.all_reduce(as_real(flat.gradients()));
    reduction.entry =
        recorder_.begin(ShardEvent::What::Reduce, static_cast<int>(group), &reduction.work);
    return;
  }
  reduction.reduced = at::empty({flat.layout().piece_size()}, flat.gradients().options());
  reduction.over_pieces = reduction.work =
      unchecked_.shard.reduce_scatter(as_real(reduction.reduced), as_real(flat.gradients()));
  reduction.entry = recorder_.begin(ShardEvent::What::Reduce, static_cast<int>(group),
                                    ranks_.replicate.valid() ? nullptr : &reduction.work);
  if (options_.level != ShardLevel::OptimizerState) flat.drop_gradients();
}

// Where there are replicas of the shards: the second half of a reduction, in the same order.
void GradientReducer::begin_over_replicas(bool wait) {
  if (!ranks_.replicate.valid() || pass_->more_pieces) return;
  for (; pass_->next_over < pass_->next; ++pass_->next_over) {
    const std::size_t group = trained_[pass_->next_over];
    Reduction& reduction = pass_->groups[group];
    if (!wait && !reduction.work.done()) return;
    reduction.work.wait();
    put_in_place(group);
    reduced_over_replicas_ += static_cast<Bytes>(reduction.reduced.nbytes());
    reduction.work = unchecked_.replicate.all_reduce(as_real(reduction.reduced));
  }
}

void GradientReducer::end() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const bool reduces = pass_->sync && !pass_->more_pieces;
  const bool waits_later = reduces && waits_in_finish_;
  or_tell_others([&] {
    pass_->in_backward = false;
    if (observer_ && pass_->accumulates) observer_->backward_ended();
    pass_->entry.end();
    if (pass_->sync) begin_all();
    if (reduces && !waits_later) end_reduced();
    if (pass_->accumulates && !reduces) {
      unchecked_header_ = pass_->header;
      for (const std::size_t g : trained_) groups_[g]->note_own_gradients();
    }
  });
  if (!waits_later) leave_pass();
}

void GradientReducer::finish() {
  const std::lock_guard lock(mutex_);
  or_tell_others([&] {
    if (!pass_) {  // no gradient came at all
      begin_pass();
      begin_all();
    }
    end_reduced();
  });
  leave_pass();
}

// What goes wrong at the end of a pass, the other ranks are told, who would wait for it.
void GradientReducer::or_tell_others(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    pass_.reset();
    ranks_.all.fail(error.what());
    throw;
  }
}

void GradientReducer::leave_pass() {
  pass_.reset();
  if (observer_) observer_->pass_ended();
  if (after_pass_) after_pass_();
}

void GradientReducer::set_aside() {
  const std::lock_guard lock(mutex_);
  if (options_.level != ShardLevel::None || !aside_.empty()) return;
  aside_.resize(groups_.size());
  for (const std::size_t g : trained_)
    for (std::size_t i = 0; i < groups_[g]->size(); ++i)
      aside_[g].push_back(std::exchange(groups_[g]->parameter(i).mutable_grad(), at::Tensor()));
}

void GradientReducer::put_back() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < aside_.size(); ++g) {
    for (std::size_t i = 0; i < aside_[g].size(); ++i) {
      if (!aside_[g][i].defined()) continue;
      at::Tensor& gradient = groups_[g]->parameter(i).mutable_grad();
      gradient = gradient.defined() ? gradient.add_(aside_[g][i]) : aside_[g][i];
    }
  }
  aside_.clear();
}

void GradientReducer::begin_all() {
  fill_unused();
  for (; pass_->next < trained_.size(); ++pass_->next) begin(trained_[pass_->next]);
  end_piece();
}

void GradientReducer::end_reduced() {
  const Stopwatch stopwatch;
  auto wait = recorder_.begin(ShardEvent::What::Wait, -1);
  pass_->header.check();
  const auto used = used_by_any();
  begin_over_replicas(true);
  for (const std::size_t g : trained_) pass_->groups[g].work.wait();
  if (hook_) end_hooks();
  for (const std::size_t g : trained_) pass_->groups[g].entry.end();
  wait.end();
  waited_ = stopwatch.seconds();
  hand_out(used);
  put_back();
  has_unreduced_ = false;
  ++steps_;
  recorder_.set_step(steps_);
}

void GradientReducer::hand_out(const std::vector<std::vector<bool>>& used) {
  const at::NoGradGuard no_grad;
  for (const std::size_t g : trained_) {
    FlatParameterGroup& flat = *groups_[g];
    flat.drop_kept();
    if (options_.level != ShardLevel::None) {
      flat.add_to_shards(pass_->groups[g].reduced, used[g], 1 / post_divide_factor(g));
      continue;
    }
    const auto& before = pass_->groups[g].before;
    for (std::size_t i = 0; i < flat.size(); ++i) {
      if (!used[g][i]) continue;
      if (!before.empty() && pass_->header.total_weight() == 0) {
        flat.parameter(i).mutable_grad() = before[i];
        continue;
      }
      at::Tensor gradient = flat.gradient_view(i).to(flat.parameter(i).scalar_type());
      if (post_divide_factor(g) != 1) gradient.div_(post_divide_factor(g));
      flat.parameter(i).mutable_grad() = gradient.variable_data();
    }
  }
}

}  // namespace trestle::sharding
