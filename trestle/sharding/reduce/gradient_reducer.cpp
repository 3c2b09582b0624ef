#include "trestle/sharding/reduce/gradient_reducer.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/sharding/options/reproducible.h"

namespace trestle::sharding {
namespace {

// view = gradient * share, in one pass over memory where the dtypes are equal. Otherwise the wider
// dtype multiplies, and fp32 for bf16 and fp16: a product may be in the range of fp16 where its
// factor is not.
void put_scaled(at::Tensor view, const at::Tensor& gradient, double share) {
  const auto type = c10::promoteTypes(gradient.scalar_type(), view.scalar_type());
  if (gradient.scalar_type() != view.scalar_type() && type != view.scalar_type()) {
    view.copy_(gradient.to(type).mul(share));
  } else if (gradient.scalar_type() != view.scalar_type()) {
    view.copy_(gradient).mul_(share);
  } else if (gradient.const_data_ptr() == view.const_data_ptr()) {
    view.mul_(share);
  } else {
    at::mul_out(view, gradient, at::native::wrapped_scalar_tensor(share));
  }
}

}  // namespace

// Lives as long as the backward's graph task. A backward that throws destroys it without
// end_backward(): then it aborts the pass, for which all ranks would wait.
class GradientReducer::PassGuard {
 public:
  explicit PassGuard(std::weak_ptr<GradientReducer> owner) : owner_(std::move(owner)) {}
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;
  ~PassGuard() {
    const auto self = owner_.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->pass_ && self->pass_->in_backward && self->pass_->guard.expired()) self->abort_pass();
  }
  void end() const {
    if (const auto self = owner_.lock()) self->end_backward();
  }

 private:
  std::weak_ptr<GradientReducer> owner_;
};

GradientReducer::GradientReducer(FlatParameterGroups groups, RankGroups ranks,
                                 const ShardOptions& options, Driver driver)
    : ranks_(std::move(ranks)),
      options_(options),
      driver_(driver),
      queue_(std::move(groups), ranks_, options, stats_),
      unused_(options.unused_parameters,
              ranks_.all.valid() ? ranks_.all.with_check(comm::Check::Off) : ranks_.all) {}

void GradientReducer::attach() {
  for (const std::size_t g : queue_.trained())
    for (std::size_t i = 0; i < group(g).size(); ++i)
      hooks_.add(group(g).parameter(i), [weak = weak_from_this(), g, i] {
        if (const auto self = weak.lock()) self->on_gradient(g, i);
      });
}

void GradientReducer::rebuild(FlatParameterGroups groups) {
  const std::lock_guard lock(mutex_);
  hooks_.clear();
  queue_.set_groups(std::move(groups));
  attach();
}

void GradientReducer::set_recorder(ShardRecorder recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
  recorder_.set_step(stats_.steps);
  queue_.set_recorder(recorder_);
}

void GradientReducer::check_attached() const {
  std::size_t number = 0;
  for (const std::size_t g : queue_.trained()) {
    for (std::size_t i = 0; i < group(g).size(); ++i) {
      if (hooks_.attached(number++, group(g).parameter(i)) && group(g).in_place(i)) continue;
      throw StateError(
          text("parameter '", group(g).name(i),
               "' was moved, cast or given other data after the model was sharded"),
          {.hint = "Move or cast the model before you shard it (ShardOptions::device moves it). "
                   "Copy weights with Sharded::load_state()."});
    }
  }
}

// The beginning of a pass.

void GradientReducer::prepare_for_backward(Moment moment) {
  const std::lock_guard lock(mutex_);
  if (pass_ && !(pass_->in_backward && pass_->guard.expired())) return;
  abort_pass();
  const GradientHooks::Use use = hooks_.use_in_this_backward();
  if (use == GradientHooks::Use::Returns && sync_ && ranks_.all.size() > 1) {
    throw StateError(
        "torch::autograd::grad() of a sharded model's parameters would return gradients of this "
        "rank's samples alone",
        {.hint = "Call backward(), or call grad() inside no_sync() if you want this rank's "
                 "gradients."});
  }
  try {
    begin_pass(use, moment);
  } catch (...) {
    abort_pass();
    throw;
  }
  auto guard = std::make_shared<PassGuard>(weak_from_this());
  pass_->in_backward = true;
  pass_->guard = guard;
  torch::autograd::Engine::get_default_engine().queue_callback([guard] { guard->end(); });
}

// A gradient came before any output of the model was seen. A micro-batch's gradient must not count
// as one from before the step.
void GradientReducer::prepare_late(std::size_t g, std::size_t index) {
  if (queue_.micro_batch_sums() == nullptr) return prepare_for_backward(Moment::AfterFirstGradient);
  if (group(g).grad_is_view(index)) {
    throw StateError(text("parameter '", group(g).name(index),
                          "' got its gradient before any output of the model did, and still holds "
                          "the last step's gradient"),
                     {.hint = "Call zero_grad() before the backward of the first micro-batch."});
  }
  at::Tensor& gradient = group(g).parameter(index).mutable_grad();
  at::Tensor fresh = std::exchange(gradient, at::Tensor());
  prepare_for_backward(Moment::AfterFirstGradient);
  gradient = std::move(fresh);
}

void GradientReducer::begin_pass(GradientHooks::Use use, Moment moment) {
  std::exchange(unchecked_handshake_, {}).check();
  pass_.emplace();
  pass_->accumulates = use == GradientHooks::Use::Accumulates;
  pass_->sync = sync_ && pass_->accumulates;
  if (!pass_->accumulates) return;
  if (announce_)
    announce_({.sync = pass_->sync,
               .weighted = weight_.has_value(),
               .after_gradients = moment == Moment::AfterFirstGradient});
  ++stats_.backwards;
  pass_->entry = recorder_.begin(ShardEvent::What::Backward, -1);
  pass_->groups.resize(queue_.groups().size());
  begin_micro_batch();
  if (pass_->sync || driver_ == Driver::Autograd)
    pass_->handshake =
        RankHandshake(ranks_.all, {.backward = pass_number(),
                                   .sync = sync_,
                                   .weight = sync_ ? weight_ : std::optional<double>(),
                                   .trained_hash = trained_hash()});
  for (const std::size_t g : queue_.trained()) begin_group(g);
  has_unreduced_ = has_unreduced_ || !pass_->sync || pass_->more_micro_batches;
  if (stats_.steps == 0 && pass_->sync) observed_.clear();
}

void GradientReducer::begin_micro_batch() {
  MicroBatchSums* const sums = pass_->sync ? queue_.micro_batch_sums() : nullptr;
  if (sums != nullptr) {
    check_threads(options_.reproducible);
    // Gradients from before the step count once, not once for each micro-batch.
    if (sums->done() == 0) set_aside_gradients();
    pass_->more_micro_batches = !sums->is_last();
  }
  queue_.begin_pass(pass_->more_micro_batches ? ReductionQueue::Ends::MicroBatch
                                              : ReductionQueue::Ends::Step);
}

// A frozen parameter takes part only with the gradient that it still holds.
void GradientReducer::begin_group(std::size_t g) {
  FlatParameterGroup& flat = group(g);
  flat.note_step();
  flat.drop_zeroed();
  flat.forget_own_gradients();
  if (pass_->sync) flat.keep_shard_gradients();
  if (pass_->sync || options_.level == ShardLevel::None) flat.renew_gradients();
  BackwardPass::Arrivals& arrivals = pass_->groups[g];
  if (options_.level == ShardLevel::None && pass_->sync && !has_unreduced_ && weight_ == 0.0)
    for (const auto& [name, parameter] : flat.parameters())
      arrivals.before.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                           : at::Tensor());
  arrivals.arrived.assign(flat.size(), false);
  arrivals.counts.assign(flat.size(), 0);
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const at::Tensor& parameter = flat.parameter(i);
    if (parameter.requires_grad() && !(pass_->sync && unused_.is_unused(parameter)))
      ++arrivals.missing;
    else if (pass_->sync)
      arrivals.arrived[i] = fill(g, i);
  }
}

std::uint32_t GradientReducer::trained_hash() const {
  std::uint32_t hash = 2166136261U;
  for (const std::size_t g : queue_.trained())
    for (const auto& [name, parameter] : group(g).parameters())
      hash = (hash ^ (parameter.requires_grad() ? 1U : 2U)) * 16777619U;
  return hash;
}

// Driver::Caller counts reduced passes: a rank may run backwards that other ranks do not, as when
// it is profiled.
std::int64_t GradientReducer::pass_number() const {
  return driver_ == Driver::Caller ? stats_.steps : stats_.backwards;
}

// The arrival of a gradient.

void GradientReducer::on_gradient(std::size_t g, std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (!pass_) prepare_late(g, index);
  if (!pass_->accumulates || !group(g).parameter(index).requires_grad()) return;
  BackwardPass::Arrivals& arrivals = pass_->groups[g];
  if (pass_->sync) {
    ++arrivals.counts[index];
    unused_.check_gradient(group(g).name(index), group(g).parameter(index));
  } else {
    group(g).accumulate(index);
  }
  if (arrivals.arrived[index]) {
    if (pass_->sync) add_second_gradient(g, index);
    return;
  }
  if (pass_->sync)
    put_gradient(g, index);
  else if (options_.level == ShardLevel::None)
    keep_in_bucket(g, index);
  arrivals.arrived[index] = true;
  if (stats_.steps == 0 && pass_->sync) observed_.emplace_back(g, index);
  if (--arrivals.missing > 0) return;
  if (observer_) observer_->gradients_complete(g);
  recorder_.look();
  if (pass_->sync) begin_ready();
}

void GradientReducer::add_second_gradient(std::size_t g, std::size_t index) {
  if (queue_.begun(g)) {
    throw StateError(
        text("parameter '", group(g).name(index),
             "' got a second gradient in one backward, after the reduction of the first one began"),
        {.hint = "A backward inside a backward does that. Run all but the last one in no_sync()."});
  }
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = group(g).parameter(index).mutable_grad();
  if (group(g).grad_is_view(index)) return;
  group(g).gradient_view(index).add_(gradient, own_factor(g));
  gradient.reset();
}

// Inside no_sync(): gradients accumulate at their place in the bucket, so that no second copy
// exists.
void GradientReducer::keep_in_bucket(std::size_t g, std::size_t index) {
  const at::NoGradGuard no_grad;
  FlatParameterGroup& flat = group(g);
  at::Tensor& gradient = flat.parameter(index).mutable_grad();
  if (flat.grad_is_view(index) || gradient.layout() != at::kStrided ||
      gradient.scalar_type() != flat.gradients().scalar_type())
    return;
  gradient = flat.gradient_view(index).copy_(gradient).variable_data();
}

void GradientReducer::put_gradient(std::size_t g, std::size_t index) {
  const at::NoGradGuard no_grad;
  FlatParameterGroup& flat = group(g);
  at::Tensor& gradient = flat.parameter(index).mutable_grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw UsageError(text("the gradient of parameter '", flat.name(index), "' is sparse"),
                     {.hint = "Gradients that are reduced over ranks must be dense. Do not set the "
                              "embedding's 'sparse' option."});
  }
  if (gradient.defined() && gradient.requires_grad()) {
    throw UsageError(
        text("the gradient of parameter '", flat.name(index), "' has a graph (create_graph)"),
        {.hint = "A reduced gradient cannot be differentiated. Compute a gradient that is part of "
                 "the loss with torch::autograd::grad()."});
  }
  const double factor = own_factor(g);
  if (flat.has_accumulated(index)) {
    flat.accumulate(index);
    put_scaled(flat.gradient_view(index), flat.take_accumulated(index), factor);
    return;
  }
  put_scaled(flat.gradient_view(index), gradient, factor);
  if (!flat.grad_is_view(index)) gradient.reset();
}

// For a parameter without a gradient in this backward: puts what earlier backwards left in grad()
// and returns true, or puts zeros.
bool GradientReducer::fill(std::size_t g, std::size_t index) {
  const at::NoGradGuard no_grad;
  if (group(g).parameter(index).grad().defined() || group(g).has_accumulated(index)) {
    put_gradient(g, index);
    return true;
  }
  group(g).gradient_view(index).zero_();
  return false;
}

void GradientReducer::fill_missing() {
  std::vector<std::string> names;
  for (const std::size_t g : queue_.trained()) {
    if (queue_.begun(g)) continue;
    BackwardPass::Arrivals& arrivals = pass_->groups[g];
    for (std::size_t i = 0; i < arrivals.arrived.size(); ++i) {
      const at::Tensor& parameter = group(g).parameter(i);
      if (arrivals.arrived[i] || !parameter.requires_grad() || unused_.is_unused(parameter))
        continue;
      arrivals.arrived[i] = fill(g, i);
      if (!arrivals.arrived[i]) names.push_back("'" + group(g).name(i) + "'");
    }
    arrivals.missing = 0;
  }
  if (pass_->has_samples) unused_.check_missing(names);
}

// Each rank's share of the average.

double GradientReducer::share() {
  if (pass_->share) return *pass_->share;
  double share = driver_ == Driver::Caller ? 1.0 : 1.0 / queue_.contributions();
  if (weight_) {
    pass_->handshake.check();
    const double total = pass_->handshake.total_weight();
    share = total == 0 ? 0 : *weight_ / total;
  }
  pass_->share = share;
  return share;
}

at::Tensor GradientReducer::apply_weight(const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  prepare_for_backward();
  if (!weight_ || !pass_->sync) return gradient;
  pass_->handshake.check();
  const double total = pass_->handshake.total_weight();
  const double factor = total == 0 ? 0 : *weight_ * ranks_.all.size() / total;
  if (factor != 1)
    for (const std::size_t g : queue_.trained())
      for (std::size_t i = 0; i < group(g).size(); ++i)
        if (!pass_->groups[g].arrived[i]) group(g).scale_own_gradient(i, factor);
  pass_->share = 1.0 / ranks_.all.size();
  return factor == 1 ? gradient : gradient * factor;
}

// The factor of this rank's gradients before the sum. A communication hook takes the plain mean
// over ranks.
double GradientReducer::own_factor(std::size_t g) {
  if (!queue_.has_hook()) return share() * queue_.post_divide_factor(g);
  return weight_ || driver_ == Driver::Caller ? share() * ranks_.all.size() : 1;
}

// Ranks without samples.

void GradientReducer::pass_without_gradients() {
  const std::lock_guard lock(mutex_);
  begin_pass(GradientHooks::Use::Accumulates, Moment::BeforeGradients);
  end_backward();
}

void GradientReducer::pass_without_samples(const std::function<void()>& meanwhile) {
  const std::lock_guard lock(mutex_);
  begin_pass(GradientHooks::Use::Accumulates, Moment::BeforeGradients);
  pass_->has_samples = false;
  meanwhile();
  end_backward();
}

void GradientReducer::complete_without_gradients(std::size_t g) {
  const std::lock_guard lock(mutex_);
  if (!pass_ || !pass_->sync) return;
  BackwardPass::Arrivals& arrivals = pass_->groups[g];
  for (std::size_t i = 0; i < arrivals.arrived.size(); ++i)
    if (!arrivals.arrived[i] && group(g).parameter(i).requires_grad())
      arrivals.arrived[i] = fill(g, i);
  arrivals.missing = 0;
  begin_ready();
}

// The end of a pass.

void GradientReducer::begin_ready() {
  queue_.begin_ready([this](std::size_t g) { return pass_->groups[g].missing == 0; });
}

void GradientReducer::begin_all() {
  fill_missing();
  queue_.begin_all();
  end_micro_batch();
}

void GradientReducer::end_micro_batch() {
  MicroBatchSums* const sums = queue_.micro_batch_sums();
  if (sums == nullptr) return;
  for (const std::size_t g : queue_.trained())
    pass_->groups[g].arrived = sums->note_used(g, pass_->groups[g].arrived);
  sums->end_micro_batch();
}

void GradientReducer::end_backward() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const bool reduces = pass_->sync && !pass_->more_micro_batches;
  const bool finishes_later = reduces && driver_ == Driver::Caller;
  fail_all_ranks_if_throws([&] {
    pass_->in_backward = false;
    if (observer_ && pass_->accumulates) observer_->backward_ended();
    pass_->entry.end();
    if (pass_->sync) begin_all();
    if (reduces && !finishes_later) end_reduced();
    if (pass_->accumulates && !reduces) {
      unchecked_handshake_ = pass_->handshake;
      for (const std::size_t g : queue_.trained()) group(g).note_own_gradients();
    }
  });
  if (!finishes_later) leave_pass();
}

void GradientReducer::finish() {
  const std::lock_guard lock(mutex_);
  fail_all_ranks_if_throws([&] {
    if (!pass_) {  // no gradient came
      begin_pass(GradientHooks::Use::Accumulates, Moment::BeforeGradients);
      begin_all();
    }
    end_reduced();
  });
  leave_pass();
}

void GradientReducer::end_reduced() {
  const Stopwatch stopwatch;
  auto wait = recorder_.begin(ShardEvent::What::Wait, -1);
  pass_->handshake.check();
  const auto used = unused_.used(queue_.groups(), *pass_, stats_);
  queue_.wait();
  wait.end();
  stats_.waited_seconds = stopwatch.seconds();
  hand_out(used);
  restore_gradients();
  has_unreduced_ = false;
  ++stats_.steps;
  recorder_.set_step(stats_.steps);
}

void GradientReducer::hand_out(const std::vector<std::vector<bool>>& used) {
  const at::NoGradGuard no_grad;
  for (const std::size_t g : queue_.trained()) {
    group(g).drop_accumulated();
    if (options_.level == ShardLevel::None)
      hand_out_to_parameters(g, used[g]);
    else
      group(g).add_to_shards(queue_.reduced(g), used[g], 1 / queue_.post_divide_factor(g));
  }
}

void GradientReducer::hand_out_to_parameters(std::size_t g, const std::vector<bool>& used) {
  FlatParameterGroup& flat = group(g);
  const double divisor = queue_.post_divide_factor(g);
  const auto& before = pass_->groups[g].before;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    if (!used[i]) continue;
    if (!before.empty() && pass_->handshake.total_weight() == 0) {
      flat.parameter(i).mutable_grad() = before[i];
      continue;
    }
    at::Tensor gradient = flat.gradient_view(i).to(flat.parameter(i).scalar_type());
    if (divisor != 1) gradient.div_(divisor);
    flat.parameter(i).mutable_grad() = gradient.variable_data();
  }
}

void GradientReducer::leave_pass() {
  forget_pass();
  if (observer_) observer_->pass_ended();
  if (after_pass_) after_pass_();
}

void GradientReducer::forget_pass() {
  pass_.reset();
  queue_.end_pass();
}

// All ranks would wait for this one.
void GradientReducer::fail_all_ranks_if_throws(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    forget_pass();
    ranks_.all.fail(error.what());
    throw;
  }
}

void GradientReducer::abort_pass() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const bool ranks_wait = pass_->sync && ranks_.all.size() > 1;
  forget_pass();
  if (MicroBatchSums* const sums = queue_.micro_batch_sums()) {
    sums->restart();  // some groups may hold their sums already
    restore_gradients();
  }
  try {
    if (ranks_wait)
      ranks_.all.fail("a backward whose gradients are reduced over ranks did not finish");
    if (observer_) observer_->pass_ended();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Communication failed before. Its next use throws the reason.
  }
}

// Gradients from before a step, and steps of several micro-batches.

void GradientReducer::set_aside_gradients() {
  const std::lock_guard lock(mutex_);
  if (options_.level == ShardLevel::None) set_aside_.take(queue_.groups());
}

void GradientReducer::restore_gradients() {
  const std::lock_guard lock(mutex_);
  set_aside_.add_back();
}

int GradientReducer::micro_batches_done() const {
  const MicroBatchSums* const sums = queue_.micro_batch_sums();
  return sums != nullptr ? sums->done() : 0;
}

void GradientReducer::restart_step() {
  const std::lock_guard lock(mutex_);
  has_unreduced_ = false;
  set_aside_.clear();  // a step that failed may have left some
  if (micro_batches_done() > 0) queue_.micro_batch_sums()->restart();
}

}  // namespace trestle::sharding
