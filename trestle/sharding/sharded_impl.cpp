#include "trestle/sharding/sharded_impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/keyed_random.h"
#include "trestle/sharding/norm_over_ranks.h"
#include "trestle/sharding/replicas.h"

namespace trestle {
namespace {

using sharding::FlatGroup;

bool inside_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

}  // namespace

// What lives during a forward of a module.
struct Sharded::Impl::ForwardScope {
  std::shared_ptr<sharding::UnitGatherer::Call> call;
  std::unique_ptr<KeyedRandom> random;
};

nn::RunKey Sharded::Impl::next_key() {
  const std::int64_t ranks = ranks_.all.size(), rank = ranks_.all.rank();
  if (forwards_of_ != reducer->steps()) forwards_ = 0;
  forwards_of_ = reducer->steps();
  const std::int64_t number = at::GradMode::is_enabled() ? forwards_++ : 0;
  return {.seed = options.seed,
          .step = first_step_ + reducer->steps(),
          .micro_batch = number * ranks + rank};
}

at::Tensor Sharded::Impl::cast_input(const at::Tensor& input) const {
  const auto& precision = options.precision;
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
  check_unchanged();
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
  if (options.broadcast_buffers && at::GradMode::is_enabled())
    sharding::broadcast(ranks_.all, tensors_of(buffers_));
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
  for (const auto& group : groups_) group->wait_gathered();
}

nn::Values Sharded::Impl::forward(nn::Values inputs) {
  if (module_)
    throw UsageError("forward() of tensors is for nn::Layers",
                     {.hint = "Call a module through ShardedModule::forward() or Sharded::run()."});
  before_forward();
  for (at::Tensor& input : inputs) input = cast_input(input);
  nn::Values outputs = nn::run(graph_, inputs, next_key());
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
  if (gatherer_) scope->call = gatherer_->begin(0, given);
  std::size_t next = 0;
  inputs([&](at::Tensor& input) { input = given[next++]; });
  return scope;
}

void Sharded::Impl::end(const std::shared_ptr<void>& scope,
                        const std::function<void(const Change&)>& outputs) {
  auto* const forward = static_cast<ForwardScope*>(scope.get());
  forward->random.reset();
  std::vector<at::Tensor> made;
  outputs([&](at::Tensor& output) { made.push_back(output); });
  if (gatherer_ && made.empty() && at::GradMode::is_enabled()) {
    throw UsageError("the model's forward returns no tensor that can be found",
                     {.hint = "At level Parameters return tensors, or tuples, pairs, vectors, maps "
                              "and optionals of them: the backward is followed by them."});
  }
  if (forward->call) gatherer_->end(forward->call, made);
  if (gatherer_) gatherer_->end_model();
  outputs([&](at::Tensor& output) { watch_output(output); });
}

void Sharded::Impl::hold_sync(int change) {
  no_syncs_ += change;
  reducer->set_sync(no_syncs_ == 0);
}

void Sharded::Impl::backward(const at::Tensor& loss, std::optional<double> weight) {
  if (weight && !(*weight >= 0 && std::isfinite(*weight)))
    throw UsageError(text("a weight of ", *weight), {.hint = "It is a number of samples."});
  if (weight && !reducer->sync()) {
    throw UsageError("a weight inside no_sync(), where nothing is averaged",
                     {.hint = "Scale the loss there, and give the backward outside the weight of "
                              "all of them together."});
  }
  if (reducer->in_pass()) reducer->give_up_pass();
  const std::int64_t before = reducer->backwards();
  reducer->set_weight(weight);
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
    reducer->set_weight({});
    reducer->give_up_pass();
    throw;
  }
  // None of the trained parameters has a part in the loss of this rank; in that of others they may have.
  if (reducer->backwards() == before) reducer->pass_without_gradients();
  reducer->set_weight({});
}

void Sharded::Impl::backward_without_samples() {
  const at::AutoGradMode with_grad(true);
  before_forward();
  reducer->set_weight(0);
  if (gatherer_) gatherer_->follow_forward();
  reducer->pass_without_samples([this] {
    if (gatherer_) gatherer_->follow_backward();
  });
  reducer->set_weight({});
}

void Sharded::Impl::drop_own_gradients() {
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
  for (const auto& group : groups_) group->drop_kept();
}

double Sharded::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& clip) {
  std::vector<at::Tensor> own = tensors_of(stepped_);
  if (options.level == ShardLevel::None) return optim::clip_grad_norm(own, max_norm, clip);
  return sharding::clip_over_ranks(own, {ranks_.shard}, max_norm, clip);
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
  if (options.broadcast_buffers) sharding::broadcast(ranks_.all, tensors_of(buffers_));
}

void Sharded::Impl::shards_changed() {
  gathered_at_ = -1;
  if (gatherer_) gatherer_->renew();
  if (unshards_ > 0) gather_stepped();
}

NamedTensors Sharded::Impl::state() {
  for (const auto& group : groups_) group->take_back();
  std::map<std::string, at::Tensor> whole;
  if (options.level != ShardLevel::None)
    for (const auto& group : groups_)
      for (auto& [name, tensor] : group->whole(ranks_.gathers)) whole[name] = tensor;
  NamedTensors all;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = whole.find(name);
    all.emplace_back(name, found != whole.end()
                               ? found->second
                               : tensor.detach().to(at::kCPU, tensor.scalar_type(),
                                                    /*non_blocking=*/false, /*copy=*/true));
  };
  for (const auto& [name, tensor] : parameters_) add(name, tensor);
  // Each rank's own have seen its own part of the last batch; the next forward begins with rank 0's.
  NamedTensors buffers;
  for (const auto& [name, tensor] : buffers_) buffers.emplace_back(name, tensor.detach().clone());
  if (options.broadcast_buffers) sharding::broadcast(ranks_.all, tensors_of(buffers));
  for (const auto& [name, tensor] : buffers) add(name, tensor);
  return all;
}

void Sharded::Impl::load_state(const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  std::vector<std::string> missing, wrong;
  NamedTensors own = parameters_;
  own.insert(own.end(), buffers_.begin(), buffers_.end());
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.push_back("'" + name + "'");
    } else if (!found->second.defined() || found->second.is_complex() > tensor.is_complex()) {
      wrong.push_back(text("'", name, "' is ", found->second.defined() ? "complex" : "no tensor"));
    } else if (found->second.sizes() != tensor.sizes()) {
      wrong.push_back(text("'", name, "' is [", join(found->second.sizes(), ", "),
                           "], the model's is [", join(tensor.sizes(), ", "), "]"));
    }
  }
  for (const auto& [name, tensor] : state)
    if (std::none_of(own.begin(), own.end(),
                     [&](const auto& named) { return named.first == name; }))
      wrong.push_back("'" + name + "' is not the model's");
  if (!missing.empty()) wrong.push_back("missing: " + join(missing, ", "));
  if (!wrong.empty()) throw UsageError("state does not fit the model: " + join(wrong, "; "));
  std::set<std::string> done;
  if (options.level != ShardLevel::None) {
    for (const auto& group : groups_) {
      std::vector<at::Tensor> whole;
      for (const auto& [name, tensor] : group->parameters()) {
        whole.push_back(given.at(name));
        done.insert(name);
      }
      group->set_shard(whole);
    }
  }
  for (const auto& [name, tensor] : own)
    if (!done.contains(name)) tensor.detach().copy_(given.at(name));
  shards_changed();
}

ShardReport Sharded::Impl::report() const {
  ShardReport report{.groups = static_cast<int>(groups_.size()),
                     .steps = reducer->steps(),
                     .reductions = reducer->reductions(),
                     .reduced = reducer->reduced_bytes(),
                     .waited_seconds = reducer->waited()};
  for (const auto& group : groups_) {
    report.gathers += group->gathers();
    report.gathered += group->gathers() * group->bytes();
  }
  return report;
}

}  // namespace trestle
