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
#include "trestle/optim/gradient_norms.h"
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

void Sharded::Impl::before_forward() {
  if (reducer->in_pass() && !inside_backward()) reducer->give_up_pass();
  if (inside_backward()) return;
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
  if (!is_between || gathered_at_ == reducer->steps()) return;
  const bool all = gathered_at_ < 0;  // frozen parameters too
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
  for (at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    if (options.precision.output && output.is_floating_point())
      output = output.to(*options.precision.output);
    if (output.requires_grad() && at::GradMode::is_enabled())
      output.register_hook([weak = std::weak_ptr(reducer)](const at::Tensor&) {
        if (const auto self = weak.lock()) self->arm();
      });
  }
  return outputs;
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
  if (forward->call) gatherer_->end(forward->call, made);
  outputs([&](at::Tensor& output) {
    if (!output.defined()) return;
    if (options.precision.output && output.is_floating_point())
      output = output.to(*options.precision.output);
    if (output.requires_grad() && at::GradMode::is_enabled())
      output.register_hook([weak = std::weak_ptr(reducer)](const at::Tensor&) {
        if (const auto self = weak.lock()) self->arm();
      });
  });
}

void Sharded::Impl::backward(const at::Tensor& loss, std::optional<double> weight) {
  if (weight && !(*weight >= 0))
    throw UsageError(text("a weight of ", *weight), {.hint = "It is a number of samples."});
  if (reducer->in_pass()) reducer->give_up_pass();
  const std::int64_t before = reducer->backwards();
  reducer->set_weight(weight);
  try {
    loss.backward();
  } catch (...) {
    reducer->set_weight({});
    reducer->give_up_pass();
    throw;
  }
  // None of the trained parameters has a part in the loss of this rank; in that of others they may have.
  if (reducer->backwards() == before) reducer->pass_without_gradients();
  reducer->set_weight({});
  if (reducer->sync()) forwards_ = 0;
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

std::pair<FlatGroup*, std::size_t> Sharded::Impl::place_of(const std::string& name) const {
  for (const auto& group : groups_)
    for (std::size_t i = 0; i < group->size(); ++i)
      if (group->name(i) == name) return {group.get(), i};
  return {nullptr, 0};
}

NamedTensors Sharded::Impl::trained_parameters() const {
  NamedTensors trained;
  for (const auto& named : parameters_)
    if (named.second.requires_grad()) trained.push_back(named);
  return trained;
}

NamedTensors Sharded::Impl::named_parameters() const {
  NamedTensors named = trained_parameters();
  if (options.level == ShardLevel::None) return named;
  for (auto& [name, tensor] : named) {
    const auto [group, index] = place_of(name);
    tensor = group->shards()[index];
  }
  return named;
}

void Sharded::Impl::drop_own_gradients() {
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
  for (const auto& group : groups_) group->drop_kept();
}

double Sharded::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& clip) {
  optim::check_clipping(max_norm, clip);
  std::vector<at::Tensor> own;
  for (auto& [name, tensor] : named_parameters())
    if (tensor.numel() > 0) own.push_back(tensor);
  if (options.level == ShardLevel::None) return optim::clip_grad_norm(own, max_norm, clip);
  const auto norms = optim::gradient_norms(own, clip.p);
  const bool largest = std::isinf(clip.p);
  double sum = 0;
  for (const auto& norm : norms)
    sum = largest ? std::max(sum, norm.value) : sum + std::pow(norm.value, clip.p);
  const at::Tensor total = at::full({1}, sum, at::kDouble);
  ranks_.shard.all_reduce(total, largest ? comm::Reduce::Max : comm::Reduce::Sum).wait();
  const double norm = largest ? total.item<double>() : std::pow(total.item<double>(), 1 / clip.p);
  return optim::clip_by(own, {{.value = norm, .dtype = at::kDouble}}, max_norm, clip);
}

void Sharded::Impl::unshard() {
  gather_stepped();
  if (gatherer_) gatherer_->gather_all();
}

void Sharded::Impl::reshard() {
  if (gatherer_) gatherer_->release_all();
}

void Sharded::Impl::shards_changed() {
  gathered_at_ = -1;
  if (gatherer_) gatherer_->release_all();
}

NamedTensors Sharded::Impl::state() {
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
  for (const auto& [name, tensor] : buffers_) add(name, tensor);
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
    if (!done.contains(name)) tensor.variable_data().copy_(given.at(name));
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
