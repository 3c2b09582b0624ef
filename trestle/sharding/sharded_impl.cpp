#include "trestle/sharding/sharded_impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/named_tensors.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/sharding/norm_over_ranks.h"
#include "trestle/sharding/replicas.h"
#include "trestle/sharding/reproducible.h"

namespace trestle {
namespace {

using sharding::FlatGroup;

bool inside_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

// What lives during a forward of a module.
struct Sharded::Impl::ForwardScope {
  std::shared_ptr<sharding::UnitGatherer::Call> call;
  std::unique_ptr<KeyedRandom> random;
  sharding::ShardRecorder::Entry entry;
};

nn::RunKey Sharded::Impl::next_key() {
  const std::int64_t ranks = ranks_.all.size(), rank = ranks_.all.rank();
  const std::int64_t backwards =
      options.reproducible.pieces > 0 ? reducer->backwards() : reducer->steps();
  if (forwards_of_ != backwards) forwards_ = 0;
  forwards_of_ = backwards;
  // A call that runs again for its backward is the one that was: it draws what is remembered of it.
  const bool counts =
      at::GradMode::is_enabled() && nn::checkpointing() != nn::Checkpointing::Recompute;
  const std::int64_t number = counts ? forwards_++ : 0;
  if (options.reproducible.pieces > 0) {
    return {.seed = options.seed,
            .step = first_step_ + reducer->steps(),
            .micro_batch = number * options.reproducible.pieces + own_pieces().front() +
                           reducer->pieces_done()};
  }
  return {.seed = options.seed,
          .step = first_step_ + reducer->steps(),
          .micro_batch = number * ranks + rank};
}

std::vector<int> Sharded::Impl::own_pieces() const {
  if (options.reproducible.pieces == 0)
    throw UsageError("own_pieces() without pieces", {.hint = "Set ShardOptions::reproducible."});
  std::vector<int> own(static_cast<std::size_t>(options.reproducible.pieces / ranks_.all.size()));
  std::iota(own.begin(), own.end(), ranks_.all.rank() * static_cast<int>(own.size()));
  return own;
}

at::Tensor Sharded::Impl::cast_input(const at::Tensor& given) const {
  const auto& precision = options.precision;
  const at::Tensor input = options.reproducible.pieces > 0 ? sharding::aligned(given) : given;
  if (!precision.parameters || !precision.cast_inputs || !input.defined() ||
      !input.is_floating_point())
    return input;
  return input.to(*precision.parameters);
}

Sharded::Impl::~Impl() {
  const bool current =
      options.level == ShardLevel::Parameters || !reducer || gathered_at_ == reducer->steps();
  try {
    for (const auto& group : groups_) group->abandon(current);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Out of memory: the parameters stay as they are.
  }
}

// What would be a wrong number without an error.
void Sharded::Impl::check_unchanged() const {
  reducer->check_watched();
  std::size_t next = 0;  // trained_ has the order of parameters_
  for (const auto& [name, tensor] : parameters_) {
    const bool known = next < trained_.size() && trained_[next].second.is_same(tensor);
    next += known ? 1 : 0;
    if (known || !tensor.requires_grad()) continue;
    throw StateError(
        text("parameter '", name, "' was frozen when the model was sharded, and is trained now"),
        {.hint = "Make another Sharded, or freeze parameters only after it is made."});
  }
}

void Sharded::Impl::before_forward() {
  if (reducer->in_pass() && !inside_backward()) reducer->give_up_pass();
  if (inside_backward()) return;
  if (at::GradMode::is_enabled()) sharding::check_threads(options.reproducible);
  check_unchanged();
  say_forward();
  for (const auto& group : groups_) {
    // The optimizer, or whoever else has the shards, has written to those since: one of both would be lost.
    if (gathered_at_ >= 0 && group->is_written() && group->stale())
      throw StateError(text("parameter '", group->name(0),
                            "', or another one of its group, was written to after the "
                            "optimizer's step, in the dtype in which the model computes"),
                       {.hint = "Write to the model's parameters inside unshard(), which has them "
                                "as they are after the last step."});
    group->take_back();
  }
  rebuild_buckets();
  gather_stepped();
  if (gatherer_) gatherer_->begin_model();
  if (options.broadcast_buffers && at::GradMode::is_enabled()) share_buffers_of(buffers_from_);
}

void Sharded::Impl::share_buffers_of(int rank) {
  sharding::broadcast(ranks_.all, without_names(buffers_), rank);
}

// Levels between None and Parameters: after a step each rank has its part of the new parameters.
void Sharded::Impl::gather_stepped() {
  const bool is_between =
      options.level != ShardLevel::None && options.level != ShardLevel::Parameters;
  if (!is_between) return;
  // After a backward there is a step. Where the last forward had none before it, the ranks ask each other whether they have
  // stepped since.
  bool stepped = gathered_at_ != reducer->steps(), all = gathered_at_ < 0;
  if (!stepped) {
    const bool stale = std::any_of(groups_.begin(), groups_.end(),
                                   [](const auto& group) { return group->stale(); });
    const at::Tensor any = at::full({1}, stale ? 1 : 0, at::kByte);
    ranks_.gathers.all_reduce(any, comm::Reduce::Max).wait();
    stepped = all = any.item<std::uint8_t>() != 0;
  }
  if (!stepped) return;
  gathered_at_ = reducer->steps();
  for (const auto& group : groups_) {
    if (!group->trained() && !all) continue;
    group->forget_gathered();
    group->gather(ranks_.gathers);
  }
  auto wait = recorder_.begin(ShardEvent::What::Wait, -1);
  for (const auto& group : groups_) group->wait_gathered();
  wait.end();
}

nn::Values Sharded::Impl::forward(nn::Values inputs) {
  if (module_)
    throw UsageError("forward() of tensors is for nn::Layers",
                     {.hint = "Call a module through ShardedModule::forward() or Sharded::run()."});
  before_forward();
  for (at::Tensor& input : inputs) input = cast_input(input);
  auto entry = recorder_.begin(ShardEvent::What::Forward, -1);
  nn::Values outputs = nn::run(graph_, inputs, next_key());
  entry.end();
  if (gatherer_) gatherer_->end_model();
  for (at::Tensor& output : outputs) watch_output(output);
  return outputs;
}

void Sharded::Impl::watch_output(at::Tensor& output) const {
  if (!output.defined()) return;
  if (options.precision.output && output.is_floating_point())
    output = output.to(*options.precision.output);
  if (!output.requires_grad() || output.is_leaf() || !at::GradMode::is_enabled()) return;
  output.register_hook([weak = std::weak_ptr(reducer)](const at::Tensor&) {
    if (const auto self = weak.lock()) self->arm();
  });
}

std::shared_ptr<void> Sharded::Impl::begin(const std::function<void(const Change&)>& inputs) {
  if (!module_)
    throw UsageError("run() is for a torch::nn::Module",
                     {.hint = "Call nn::Layers through forward()."});
  before_forward();
  auto scope = std::make_shared<ForwardScope>();
  scope->entry = recorder_.begin(ShardEvent::What::Forward, -1);
  const nn::RunKey key = next_key();
  const at::Device device =
      parameters_.empty() ? at::Device(at::kCPU) : parameters_[0].second.device();
  scope->random =
      std::make_unique<KeyedRandom>(device, keyed_seed(key.seed, key.step, 0, key.micro_batch));
  std::vector<at::Tensor> given;
  inputs([&](at::Tensor& input) {
    input = cast_input(input);
    given.push_back(input);
  });
  if (gatherer_) scope->call = gatherer_->begin(0, given);  // what is in no unit of its own
  std::size_t next = 0;
  inputs([&](at::Tensor& input) { input = given[next++]; });
  return scope;
}

void Sharded::Impl::end(const std::shared_ptr<void>& scope,
                        const std::function<void(const Change&)>& outputs) {
  auto* const forward = static_cast<ForwardScope*>(scope.get());
  forward->random.reset();
  forward->entry.end();
  std::vector<at::Tensor> made;
  outputs([&](at::Tensor& output) { made.push_back(output); });
  if (gatherer_ && made.empty() && at::GradMode::is_enabled()) {
    throw UsageError("the model's forward returns no tensor that can be found",
                     {.hint = "At level Parameters return tensors, or tuples, pairs, vectors, maps "
                              "and optionals of them: the backward is followed by them."});
  }
  if (forward->call) gatherer_->end(forward->call, made);
  if (gatherer_) gatherer_->end_model();
  std::size_t next = 0;
  outputs([&](at::Tensor& output) {
    output = made[next++];
    watch_output(output);
  });
}

void Sharded::Impl::hold_sync(int change) {
  if (options.reproducible.pieces > 0)
    throw UsageError("no_sync() with ShardOptions::reproducible",
                     {.hint = "A step has a backward for each of own_pieces(), and the last one "
                              "reduces."});
  no_syncs_ += change;
  reducer->set_sync(no_syncs_ == 0);
}

void Sharded::Impl::backward(const at::Tensor& loss, std::optional<double> weight) {
  if (weight && !(*weight >= 0 && std::isfinite(*weight)))
    throw UsageError(text("a weight of ", *weight), {.hint = "It is a number of samples."});
  if (weight && options.reproducible.pieces > 0)
    throw UsageError("a weight with ShardOptions::reproducible, whose pieces are equal",
                     {.hint = "Leave it out."});
  if (weight && !reducer->sync()) {
    throw UsageError("a weight inside no_sync(), where nothing is averaged",
                     {.hint = "Scale the loss there, and give the backward outside the weight of "
                              "all of them together."});
  }
  if (reducer->in_pass()) reducer->give_up_pass();
  const std::int64_t before = reducer->backwards();
  reducer->set_weight(weight ? weight : join_weight_);
  if (join_) earlier_ = earlier_gradients();
  at::Tensor root = loss;
  if (weight && loss.requires_grad()) {
    root = loss * 1;
    root.register_hook([weak = std::weak_ptr(reducer)](const at::Tensor& gradient) {
      const auto self = weak.lock();
      return self ? self->weigh(gradient) : gradient;
    });
  }
  try {
    root.backward();
  } catch (...) {
    reducer->set_weight(join_weight_);
    reducer->give_up_pass();
    throw;
  }
  // None of the trained parameters has a part in the loss of this rank; in that of others they may have.
  if (reducer->backwards() == before) reducer->pass_without_gradients();
  reducer->set_weight(join_weight_);
}

void Sharded::Impl::backward_without_samples() {
  if (options.reproducible.pieces > 0)
    throw UsageError("backward_without_samples() with ShardOptions::reproducible",
                     {.hint = "All pieces are equal: each has samples."});
  if (has_synced_norms())
    throw UsageError(
        "backward_without_samples() with batch norms that count all ranks' samples "
        "(SyncBatchNorm), where the others would wait for this rank",
        {.hint = "Call forward() with an empty batch, and backward() with a sum over it."});
  const at::AutoGradMode with_grad(true);
  before_forward();
  reducer->set_weight(0);
  if (gatherer_) gatherer_->follow_forward();
  reducer->pass_without_samples([this] {
    if (gatherer_) gatherer_->follow_backward();
  });
  reducer->set_weight(join_weight_);
}

void Sharded::Impl::zero_grad() {
  for (const auto& [name, tensor] : stepped_) tensor.mutable_grad().reset();
  drop_own_gradients();
}

void Sharded::Impl::drop_own_gradients() {
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
  for (const auto& group : groups_) group->drop_kept();
  reducer->begin_step_anew();
}

double Sharded::Impl::clip_own(double max_norm, const optim::ClipGradNormOptions& clip) {
  std::vector<at::Tensor> own = without_names(stepped_);
  if (options.reproducible.pieces > 0) {
    optim::check_clipping(max_norm, clip);
    const double norm = sharding::exact_norm(own, ranks_.shard, clip.p);
    return optim::clip_by(own, {{.value = norm, .dtype = at::kDouble}}, max_norm, clip);
  }
  if (options.level == ShardLevel::None) return optim::clip_grad_norm(own, max_norm, clip);
  return sharding::clip_over_ranks(own, {ranks_.shard}, max_norm, clip);
}

double Sharded::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& clip) {
  const double norm = clip_own(max_norm, clip);
  note_gradients();
  return norm;
}

void Sharded::Impl::unshard() {
  ++unshards_;
  gather_stepped();
  if (gatherer_) gatherer_->gather_all();
}

void Sharded::Impl::reshard() {
  for (const auto& group : groups_) group->take_back();
  if (gatherer_) gatherer_->release_all();
  if (unshards_ > 0) --unshards_;
}

void Sharded::Impl::finish_reduction() {
  reducer->finish();
  reducer->set_sync(false);
  if (options.broadcast_buffers) share_buffers_of(0);
}

void Sharded::Impl::shards_changed() {
  gathered_at_ = -1;
  if (gatherer_) gatherer_->renew();
  if (unshards_ > 0) gather_stepped();
}

void Sharded::Impl::hand_out_recorder() {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    groups_[g]->set_recorder(recorder_, static_cast<int>(g));
  reducer->set_recorder(recorder_);
  if (gatherer_) gatherer_->set_recorder(recorder_);
}

void Sharded::Impl::start_recording() {
  recorder_ = sharding::ShardRecorder::start();
  hand_out_recorder();
}

ShardRecord Sharded::Impl::stop_recording() {
  if (!recorder_.is_on()) throw StateError("stop_recording() without start_recording()");
  ShardRecord record = std::exchange(recorder_, {}).take();
  hand_out_recorder();
  if (gatherer_)
    for (const auto& unit : units_) record.units.push_back(unit.name);
  return record;
}

ShardReport Sharded::Impl::report() const {
  ShardReport report{.groups = static_cast<int>(groups_.size()),
                     .steps = reducer->steps(),
                     .reductions = reducer->reductions(),
                     .reduced = reducer->reduced_bytes(),
                     .reduced_over_replicas = reducer->reduced_over_replicas(),
                     .asked_for_unused = reducer->asked_for_unused(),
                     .waited_seconds = reducer->waited()};
  for (const auto& group : groups_) {
    report.gathers += group->gathers();
    report.gathers_among_few += group->gathers_among_few();
    report.gathered += group->gathers() * group->bytes();
  }
  return report;
}

}  // namespace trestle
