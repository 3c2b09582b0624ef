#include "trestle/sharding/gradient_reducer.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

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
    if (!sync_) continue;
    groups_[g]->keep_shard_gradients();
    groups_[g]->renew_gradients();
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

// What ranks say at the beginning of a pass, so that one that does something else is found by what it says and not by a
// wrong number: which backward this is, and its weight.
void GradientReducer::begin_header() {
  if (ranks_.all.size() == 1) return;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  pass_->header = at::empty({3}, options);
  auto* values = pass_->header.mutable_data_ptr<double>();
  values[0] = static_cast<double>(backwards_);
  values[1] = weight_ ? 1 : 0;
  values[2] = weight_.value_or(1);
  pass_->headers = at::empty({ranks_.all.size() * 3}, options);
  pass_->header_work = ranks_.all.all_gather(pass_->headers, pass_->header);
}

void GradientReducer::check_headers() {
  if (ranks_.all.size() == 1) return;
  pass_->header_work.wait();
  const auto* values = pass_->headers.const_data_ptr<double>();
  for (int rank = 0; rank < ranks_.all.size(); ++rank) {
    const double* theirs = values + 3 * static_cast<std::ptrdiff_t>(rank);
    const int number = ranks_.all.ranks().at(static_cast<std::size_t>(rank));
    if (theirs[0] != static_cast<double>(backwards_)) {
      throw StateError(
          text("rank ", number, " is in its backward number ", theirs[0], ", this one in number ",
               backwards_),
          {.hint =
               "All ranks make the same number of backwards, inside and outside of no_sync()."});
    }
    if ((theirs[1] != 0) != weight_.has_value()) {
      throw StateError(
          text("rank ", number,
               theirs[1] != 0 ? " gives its backward a weight" : " gives its backward no weight",
               ", this one ", weight_ ? "does" : "does not"),
          {.hint = "Give backward() a weight on all ranks or on none."});
    }
  }
}

double GradientReducer::share() {
  if (pass_->share) return *pass_->share;
  double share = 1.0 / ranks_.all.size();
  if (weight_) {
    double total = *weight_;
    if (ranks_.all.size() > 1) {
      check_headers();
      total = 0;
      const auto* values = pass_->headers.const_data_ptr<double>();
      for (int rank = 0; rank < ranks_.all.size(); ++rank) total += values[3 * rank + 2];
    }
    share = total == 0 ? 0 : *weight_ / total;
  }
  pass_->share = share;
  return share;
}

double GradientReducer::later_divisor(std::size_t group) const {
  if (groups_[group]->reduce_dtype() != at::kHalf) return 1;
  double divisor = 1;  // a power of two next to the root of the ranks: dividing by it is exact
  while (4 * divisor * divisor <= ranks_.all.size()) divisor *= 2;
  return divisor;
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
  if (pass_->sync) put_gradient(group, index);
  reduction.fired[index] = true;
  if (steps_ == 0 && pass_->sync) observed_.emplace_back(group, index);
  if (--reduction.missing > 0) return;
  if (observer_) observer_->gradients_complete(group);
  if (pass_->sync) begin_ready();
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
  if (options_.level == ShardLevel::None || !ranks_.replicate.valid() ||
      ranks_.replicate.size() == 1)
    return;
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
    if (pass_->sync) end_reduced();
  } catch (const std::exception& error) {
    pass_.reset();
    ranks_.all.fail(error.what());
    throw;
  }
  pass_.reset();
  if (observer_) observer_->pass_ended();
}

void GradientReducer::end_reduced() {
  fill_unused();
  for (; pass_->next < trained_.size(); ++pass_->next) begin(trained_[pass_->next]);
  const Stopwatch stopwatch;
  check_headers();
  const auto used = used_by_any();
  begin_over_replicas(true);
  for (const std::size_t g : trained_) pass_->groups[g].work.wait();
  waited_ = stopwatch.seconds();
  hand_out(used);
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
