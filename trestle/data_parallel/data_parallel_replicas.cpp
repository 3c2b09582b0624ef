#include "trestle/data_parallel/data_parallel_replicas.h"

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/data_parallel/replica_threads.h"
#include "trestle/data_parallel/shared_tensor.h"
#include "trestle/device/device.h"
#include "trestle/device/error_context.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/stream.h"
#include "trestle/device/threads.h"
#include "trestle/nn/checkpointing.h"

namespace trestle::data_parallel {
namespace {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

template <class Items>
NamedTensors named_of_replica(const Items& items) {
  NamedTensors result;
  for (const auto& item : items) result.emplace_back(item.key(), item.value());
  return result;
}

constexpr const char* both_ways_out =
    "Give DataParallel a function that makes the module, as [] { return Net(); }, or have the "
    "module "
    "and all its children derive from torch::nn::Cloneable.";

std::string shape_of_replica(const at::Tensor& tensor) {
  return text("[", join(tensor.sizes(), ", "), "]");
}

void check_alike(const NamedTensors& first, const NamedTensors& other, const char* what) {
  if (first.size() != other.size()) {
    throw UsageError(text("the replicas differ: one has ", first.size(), " ", what,
                          "s, another one ", other.size()),
                     {.hint = "A factory must make the same net each time it is called."});
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].second.sizes() == other[i].second.sizes()) continue;
    throw UsageError(text("the replicas differ: ", what, " '", first[i].first, "' is ",
                          shape_of_replica(first[i].second), " in one and ",
                          shape_of_replica(other[i].second), " in another one"),
                     {.hint = "A factory must make the same net each time it is called."});
  }
}

// Sets each module's training mode to that of the first replica's, where children may differ.
// train() sets a module's children too, which come later in the list.
void follow_modes(const Modules& first, const Modules& other) {
  const std::size_t count = std::min(first.size(), other.size());
  const auto differs = [&](std::size_t i) {
    return first[i]->is_training() != other[i]->is_training();
  };
  std::size_t i = 0;
  while (i < count && !differs(i)) ++i;
  if (i == count) return;
  for (i = 0; i < count; ++i) other[i]->train(first[i]->is_training());
}

// The caller's grad mode, autocast and streams, for the other replicas' threads.
struct CallerState {
  at::ThreadLocalState local;
  std::vector<c10::Stream> streams;
  explicit CallerState(const std::vector<at::Device>& devices)
      : streams(device::current_streams(devices)) {}
};

}  // namespace

ReplicaView view_of(const std::shared_ptr<torch::nn::Module>& module) {
  return {.parameters = [module] { return named_of_replica(module->named_parameters()); },
          .buffers = [module] { return named_of_replica(module->named_buffers()); },
          .modules = [module] { return module->modules(); },
          .to =
              [module](at::Device device) {
                module->to(device);
                for (auto& parameter : module->parameters()) {
                  if (parameter.grad().defined())
                    parameter.mutable_grad() = parameter.grad().detach().to(device);
                }
              }};
}

ReplicaView view_of(const std::shared_ptr<nn::Layers>& layers) {
  return {.parameters = [layers] { return layers->named_parameters(); },
          .buffers = [layers] { return layers->named_buffers(); },
          .modules =
              [layers] {
                Modules all;
                const nn::Graph graph = layers->graph();
                for (const nn::Layer& layer : graph.layers) {
                  if (!layer.module) continue;
                  for (auto& module : layer.module->modules()) all.push_back(std::move(module));
                }
                return all;
              },
          .to = [layers](at::Device device) { layers->to(device); }};
}

std::shared_ptr<torch::nn::Module> clone(const torch::nn::Module& module, at::Device device) {
  try {
    std::shared_ptr<torch::nn::Module> copy;
    run_apart([&] { copy = module.clone(device); });  // a clone draws initial weights
    return copy;
  } catch (const c10::Error& error) {
    throw UsageError(text("DataParallel cannot copy the module '", module.name(),
                          "': ", error.what_without_backtrace()),
                     {.hint = both_ways_out});
  }
}

void refuse_type(const torch::nn::Module& module) {
  throw UsageError(text("DataParallel cannot copy the module '", module.name(),
                        "': its clone() returns a module of another type"),
                   {.hint = both_ways_out});
}

void run_apart(const std::function<void()>& make) {
  const KeyedRandom random(at::kCPU, 0);
  make();
}

struct Replicas::State {
  std::vector<ReplicaView> views;
  std::vector<SharedTensor> parameters, buffers;
  std::shared_ptr<std::atomic<bool>> reached = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> is_running = false;
  ReplicaThreads threads;

  State(std::vector<ReplicaView> given, std::size_t count)
      : views(std::move(given)), threads(count, threads_of_each(static_cast<int>(count))) {}

  std::vector<SharedTensor> share(std::function<NamedTensors()> ReplicaView::*list,
                                  SharedTensor::Kind kind) const;
  void check_unchanged(const std::vector<SharedTensor>& known, const NamedTensors& now,
                       at::Device device) const;
  void prepare(at::Device device, SharedTensor::Writes writes);
};

std::vector<SharedTensor> Replicas::State::share(std::function<NamedTensors()> ReplicaView::*list,
                                                 SharedTensor::Kind kind) const {
  const char* const what = kind == SharedTensor::Kind::Parameter ? "parameter" : "buffer";
  std::vector<NamedTensors> all;
  for (const ReplicaView& view : views) {
    all.push_back((view.*list)());
    check_alike(all[0], all.back(), what);
  }
  std::vector<SharedTensor> result;
  if (all.size() < 2) return result;
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    std::vector<at::Tensor> copies;
    for (std::size_t r = 1; r < all.size(); ++r) copies.push_back(all[r][i].second);
    result.emplace_back(all[0][i].first, kind, all[0][i].second, std::move(copies), reached);
  }
  return result;
}

void Replicas::State::check_unchanged(const std::vector<SharedTensor>& known,
                                      const NamedTensors& now, at::Device device) const {
  bool same = known.size() == now.size();
  for (std::size_t i = 0; same && i < now.size(); ++i)
    same = known[i].source().is_same(now[i].second);
  if (!same) {
    throw StateError("the module's parameters or buffers were replaced after DataParallel was made",
                     {.hint = "Change the module before you make the DataParallel."});
  }
  for (const SharedTensor& tensor : known) {
    if (tensor.source().device() == device) continue;
    throw UsageError(text("the first replica belongs on ", device_name(device), ", but '",
                          tensor.name(), "' is on ", device_name(tensor.source().device())),
                     {.hint = "Do not move the module after DataParallel is made."});
  }
}

void Replicas::State::prepare(at::Device device, SharedTensor::Writes writes) {
  if (views.size() < 2) return;
  // A checkpointed function around the call must not restore the copies' old values.
  const at::DisableRecordFunctionGuard unwatched;
  const bool keeps_graph = at::GradMode::is_enabled();
  const c10::InferenceMode outside(false);
  check_unchanged(parameters, views[0].parameters(), device);
  check_unchanged(buffers, views[0].buffers(), device);
  // An optimizer's step may not change a parameter's version, but it needs a gradient.
  bool has_gradient = reached->exchange(false);
  for (const SharedTensor& parameter : parameters)
    has_gradient = has_gradient || parameter.source().grad().defined();
  if (has_gradient) writes = SharedTensor::Writes::Unseen;
  for (SharedTensor& parameter : parameters) parameter.refresh(writes);
  if (keeps_graph) {
    const auto streams =
        std::make_shared<const std::vector<c10::Stream>>(device::current_streams({device}));
    for (SharedTensor& parameter : parameters) parameter.link(streams);
  }
  for (SharedTensor& buffer : buffers) buffer.refresh(SharedTensor::Writes::Unseen);
  const Modules first = views[0].modules();
  for (std::size_t r = 1; r < views.size(); ++r) follow_modes(first, views[r].modules());
}

Replicas::Replicas(std::vector<ReplicaView> views, std::vector<at::Device> devices)
    : devices_(std::move(devices)) {
  for (std::size_t r = 0; r < views.size(); ++r) views[r].to(devices_[r]);
  const std::size_t count = views.size();
  state_ = std::make_unique<State>(std::move(views), count);
  state_->parameters = state_->share(&ReplicaView::parameters, SharedTensor::Kind::Parameter);
  state_->buffers = state_->share(&ReplicaView::buffers, SharedTensor::Kind::Buffer);
}

Replicas::~Replicas() = default;

void Replicas::refresh() { state_->prepare(devices_[0], SharedTensor::Writes::Unseen); }

void Replicas::run(std::size_t count, const std::function<void(std::size_t)>& job) {
  State& state = *state_;
  if (state.is_running.exchange(true)) {
    throw StateError("DataParallel was called while another call was running",
                     {.hint = "Call it from one thread at a time."});
  }
  const std::unique_ptr<State, void (*)(State*)> running(
      &state, [](State* ending) { ending->is_running = false; });
  state.prepare(devices_[0], SharedTensor::Writes::Seen);
  if (devices_.size() == 1) return job(0);

  // Replicas that share a generator would draw numbers in the order in which they run.
  std::optional<std::int64_t> seed;
  const Modules modules = state.views[0].modules();
  if (std::any_of(modules.begin(), modules.end(), [](const auto& m) { return m->is_training(); }))
    seed = at::randint(INT64_MAX, {1}, at::kLong).item<std::int64_t>();
  const auto run_one = [&](std::size_t r) {
    const at::Device device = devices_[r];
    try {
      const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::optional<at::Device>()
                                                           : std::optional<at::Device>(device));
      std::optional<KeyedRandom> random;
      if (seed)
        random.emplace(
            device.is_cuda() ? at::Device(at::kCPU) : device,
            keyed_seed(static_cast<std::uint64_t>(*seed), 0, -1, static_cast<std::int64_t>(r)));
      job(r);
    } catch (...) {
      rethrow_with_context(text("in replica ", r, " of ", count, ", on ", device_name(device)));
    }
  };
  // A device's backward thread must not wait for a thread that may need it. A checkpointed function
  // follows the tensors of its own thread, and is recomputed in a backward thread.
  if (torch::autograd::get_current_graph_task_id() != -1 ||
      nn::checkpointing() != nn::Checkpointing::None) {
    for (std::size_t r = 0; r < count; ++r) run_one(r);
    return;
  }
  const CallerState caller(devices_);
  state.threads.run(count, [&](std::size_t r) {
    if (r == 0) return run_one(r);
    const at::ThreadLocalStateGuard local(caller.local);
    const device::StreamScope streams(caller.streams);
    run_one(r);
  });
}

}  // namespace trestle::data_parallel
