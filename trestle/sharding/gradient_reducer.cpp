#include "trestle/sharding/gradient_reducer.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

using torch::autograd::variable_list;

comm::Group unchecked(const comm::Group& group) {
  return group.valid() ? group.with_check(comm::Check::Off) : group;
}

// view = gradient * share, in one pass over memory where the dtypes are the same. Otherwise it is multiplied in the wider
// one, of bf16 and fp16 in fp32: what is in the range of fp16 only when it is divided is not infinite before.
void put_scaled(at::Tensor view, const at::Tensor& gradient, double share) {
  const auto type = c10::promoteTypes(gradient.scalar_type(), view.scalar_type());
  if (gradient.scalar_type() != view.scalar_type() && type != view.scalar_type()) {
    view.copy_(gradient.to(type).mul(share));
  } else if (gradient.scalar_type() != view.scalar_type()) {
    view.copy_(gradient).mul_(share);
  } else if (gradient.is_alias_of(view)) {
    view.mul_(share);
  } else {
    at::mul_out(view, gradient, at::native::wrapped_scalar_tensor(share));
  }
}

}  // namespace

GradientReducer::GradientReducer(std::vector<std::shared_ptr<FlatGroup>> groups, RankGroups ranks,
                                 const ShardOptions& options)
    : groups_(std::move(groups)), ranks_(std::move(ranks)), options_(options) {
  unchecked_ = {.all = unchecked(ranks_.all),
                .shard = unchecked(ranks_.shard),
                .gathers = {},
                .replicate = unchecked(ranks_.replicate)};
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g]->trained()) trained_.push_back(g);
}

void GradientReducer::watch() {
  for (const std::size_t g : trained_) {
    for (std::size_t i = 0; i < groups_[g]->size(); ++i) {
      auto accumulator = torch::autograd::impl::grad_accumulator(groups_[g]->parameter(i));
      accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [weak = weak_from_this(), g, i](const variable_list& outputs, const variable_list&) {
            if (const auto self = weak.lock()) self->on_gradient(g, i);
            return outputs;
          }));
      accumulators_.push_back(std::make_shared<decltype(accumulator)>(std::move(accumulator)));
    }
  }
}

void GradientReducer::go_on_from(GradientReducer& before) {
  steps_ = before.steps_;
  backwards_ = before.backwards_;
  reductions_ = before.reductions_;
  reduced_bytes_ = before.reduced_bytes_;
  sync_ = before.sync_;
  has_unreduced_ = before.has_unreduced_;
}

void GradientReducer::arm() {
  const std::lock_guard lock(mutex_);
  if (pass_) return;
  begin_pass();
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->end();
  });
}

void GradientReducer::begin_pass() {
  ++backwards_;
  pass_.emplace();
  pass_->sync = sync_;
  pass_->groups.resize(groups_.size());
  for (const std::size_t g : trained_) {
    pass_->groups[g].fired.assign(groups_[g]->size(), false);
    pass_->groups[g].missing = groups_[g]->size();
    groups_[g]->note_writes();
    if (sync_) groups_[g]->keep_shard_gradients();
    if (sync_ || options_.level == ShardLevel::None) groups_[g]->renew_gradients();
  }
  has_unreduced_ = has_unreduced_ || !sync_;
  if (!sync_) return;
  if (steps_ == 0) observed_.clear();
  begin_header();
}

void GradientReducer::give_up_pass() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const bool others_wait = pass_->sync && ranks_.all.size() > 1;
  pass_.reset();
  if (others_wait)
    ranks_.all.fail("a backward whose gradients are reduced over ranks did not come to its end");
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
  if (!pass_) arm();
  Reduction& reduction = pass_->groups[group];
  if (!pass_->sync) groups_[group]->add_to_kept(index);
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
      groups_[group]->gradient_view(index).add_(gradient, share() * later_divisor(group));
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
  if (pass_->sync) begin_ready();
}

// Where gradients add up before they are reduced: in their place already, so that they are there once.
void GradientReducer::keep_in_bucket(std::size_t group, std::size_t index) {
  const at::NoGradGuard no_grad;
  FlatGroup& flat = *groups_[group];
  at::Tensor& gradient = flat.parameter(index).mutable_grad();
  if (flat.grad_is_view(index) || gradient.layout() != at::kStrided ||
      gradient.scalar_type() != flat.gradients().scalar_type())
    return;
  gradient = flat.gradient_view(index).copy_(gradient).variable_data();
}

void GradientReducer::put_gradient(std::size_t group, std::size_t index) {
  const at::NoGradGuard no_grad;
  FlatGroup& flat = *groups_[group];
  at::Tensor& gradient = flat.parameter(index).mutable_grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw UsageError(text("the gradient of parameter '", flat.name(index), "' is sparse"),
                     {.hint = "Gradients that are reduced over ranks are dense: leave out the "
                              "embedding's 'sparse' option."});
  }
  const double factor = share() * later_divisor(group);
  if (flat.has_kept(index)) {
    flat.add_to_kept(index);
    put_scaled(flat.gradient_view(index), flat.take_kept(index), factor);
    return;
  }
  put_scaled(flat.gradient_view(index), gradient, factor);
  if (!flat.grad_is_view(index)) gradient.reset();
}

void GradientReducer::begin_ready() {
  while (pass_->next < trained_.size()) {
    const std::size_t group = trained_[pass_->next];
    if (pass_->groups[group].missing > 0) break;
    begin(group);
    ++pass_->next;
  }
  begin_over_replicas(false);
}

void GradientReducer::begin(std::size_t group) {
  FlatGroup& flat = *groups_[group];
  Reduction& reduction = pass_->groups[group];
  reduction.begun = true;
  ++reductions_;
  reduced_bytes_ += static_cast<Bytes>(flat.gradients().nbytes());
  if (options_.level == ShardLevel::None) {
    reduction.work = unchecked_.all.all_reduce(flat.gradients());
    return;
  }
  reduction.reduced = at::empty({flat.layout().piece_size()}, flat.gradients().options());
  reduction.work = unchecked_.shard.reduce_scatter(reduction.reduced, flat.gradients());
  if (options_.level != ShardLevel::OptimizerState) flat.drop_gradients();
}

// Where there are replicas of the shards: the second half of a reduction, in the same order.
void GradientReducer::begin_over_replicas(bool wait) {
  if (!ranks_.replicate.valid()) return;
  for (; pass_->next_over < pass_->next; ++pass_->next_over) {
    Reduction& reduction = pass_->groups[trained_[pass_->next_over]];
    if (!wait && !reduction.work.done()) return;
    reduction.work.wait();
    reduction.work = unchecked_.replicate.all_reduce(reduction.reduced);
  }
}

void GradientReducer::end() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  try {
    if (pass_->sync) begin_all();
    if (pass_->sync && waits_in_finish_) return;
    if (pass_->sync) end_reduced();
  } catch (const std::exception& error) {
    pass_.reset();
    ranks_.all.fail(error.what());
    throw;
  }
  pass_.reset();
  if (observer_) observer_->pass_ended();
}

void GradientReducer::finish() {
  const std::lock_guard lock(mutex_);
  if (!pass_) {  // no gradient came at all
    begin_pass();
    begin_all();
  }
  try {
    end_reduced();
  } catch (const std::exception& error) {
    pass_.reset();
    ranks_.all.fail(error.what());
    throw;
  }
  pass_.reset();
  if (observer_) observer_->pass_ended();
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
}

void GradientReducer::end_reduced() {
  const Stopwatch stopwatch;
  check_headers();
  const auto used = used_by_any();
  begin_over_replicas(true);
  for (const std::size_t g : trained_) pass_->groups[g].work.wait();
  waited_ = stopwatch.seconds();
  hand_out(used);
  put_back();
  has_unreduced_ = false;
  ++steps_;
}

// Gradients that did not come in this backward: what earlier ones have left in grad(), or zero.
void GradientReducer::fill_unused() {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (const std::size_t g : trained_) {
    Reduction& reduction = pass_->groups[g];
    for (std::size_t i = 0; i < reduction.fired.size(); ++i) {
      if (reduction.fired[i]) continue;
      if (groups_[g]->parameter(i).grad().defined() || groups_[g]->has_kept(i)) {
        put_gradient(g, i);
        reduction.fired[i] = true;
      } else {
        groups_[g]->gradient_view(i).zero_();
        names.push_back("'" + groups_[g]->name(i) + "'");
      }
    }
    reduction.missing = 0;
  }
  if (names.empty() || options_.unused_parameters == UnusedParameters::Find || !pass_->has_samples)
    return;
  throw StateError(text("no gradient came for ", names.size() == 1 ? "parameter " : "parameters ",
                        join(names, ", ")),
                   {.hint = "If they are left out on purpose, set unused_parameters = "
                            "UnusedParameters::Find, or do not train "
                            "them (requires_grad)."});
}

std::vector<std::vector<bool>> GradientReducer::used_by_any() {
  std::vector<std::vector<bool>> used(groups_.size());
  std::int64_t count = 0;
  for (const std::size_t g : trained_) {
    used[g].assign(groups_[g]->size(), true);
    count += static_cast<std::int64_t>(used[g].size());
  }
  if (options_.unused_parameters == UnusedParameters::Refuse) return used;
  const at::Tensor bits = at::zeros({count}, at::kByte);
  auto* bit = bits.mutable_data_ptr<std::uint8_t>();
  for (const std::size_t g : trained_)
    for (const bool fired : pass_->groups[g].fired) *bit++ = fired ? 1 : 0;
  unchecked_.all.all_reduce(bits, comm::Reduce::Max).wait();
  const auto* found = bits.const_data_ptr<std::uint8_t>();
  for (const std::size_t g : trained_)
    for (std::size_t i = 0; i < used[g].size(); ++i) used[g][i] = *found++ != 0;
  return used;
}

void GradientReducer::hand_out(const std::vector<std::vector<bool>>& used) {
  const at::NoGradGuard no_grad;
  for (const std::size_t g : trained_) {
    FlatGroup& flat = *groups_[g];
    flat.drop_kept();
    if (options_.level != ShardLevel::None) {
      flat.add_to_shards(pass_->groups[g].reduced, used[g], 1 / later_divisor(g));
      continue;
    }
    for (std::size_t i = 0; i < flat.size(); ++i) {
      if (!used[g][i]) continue;
      at::Tensor gradient = flat.gradient_view(i).to(flat.parameter(i).scalar_type());
      if (later_divisor(g) != 1) gradient.div_(later_divisor(g));
      flat.parameter(i).mutable_grad() = gradient.variable_data();
    }
  }
}

}  // namespace trestle::sharding
