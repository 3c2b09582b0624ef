#include "trestle/recompute/region.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/nn/copies.h"
#include "trestle/nn/layer.h"
#include "trestle/recompute/recomputation.h"

namespace trestle::recompute {
namespace {

constexpr int no_task = -1;  // libtorch's task id outside of a backward

void add_gpu(std::vector<at::Device>& gpus, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return;
  if (std::find(gpus.begin(), gpus.end(), tensor.device()) == gpus.end())
    gpus.push_back(tensor.device());
}

}  // namespace

Region::Region(const nn::CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
               std::shared_ptr<const nn::ModuleState> modules, RecomputeFunction function)
    : options_(options),
      modules_(std::move(modules)),
      function_(std::move(function)),
      autocast_(nn::AutocastState::current()),
      layer_run_(nn::LayerRun::place()),
      current_device_(current_accelerator()) {
  for (const at::Tensor& tensor : inputs) {
    Input& input = inputs_.emplace_back();
    add_gpu(gpus_, tensor);
    if (!tensor.defined() || tensor.is_inference()) {
      input.plain = tensor;
      continue;
    }
    nn::KeptInput kept{.kept = tensor};
    if (options_.keep_input) kept = options_.keep_input(tensor);
    input.restore = std::move(kept.restore);
    input.saved = torch::autograd::SavedVariable(kept.kept, /*is_output=*/false);
    input.requires_grad = tensor.requires_grad();
    input.version = Version::of(tensor);
  }
  if (!modules_) return;
  for (const auto& [name, parameter] : modules_->parameters) add_gpu(gpus_, parameter);
  nn::BufferCopies copies;
  snapshot_.emplace(*modules_, copies, nn::RunKey());
}

std::size_t Region::add_slot(const at::Tensor& tensor) {
  // A recomputation gets the buffers' values from the snapshot. A deferred batch norm has others in
  // the first run, and its backward does not use them.
  const bool is_buffer =
      modules_ && std::any_of(modules_->buffers.begin(), modules_->buffers.end(),
                              [&](const at::Tensor& buffer) { return buffer.is_alias_of(tensor); });
  const bool same_values = options_.keep_random && !is_buffer;
  SavedTensor saved = {.metadata = TensorMetadata::of(tensor),
                       .values = same_values ? ValueSample(tensor) : ValueSample()};
  const std::lock_guard lock(mutex_);
  slots_.push_back({.saved = std::move(saved), .version = Version::of(tensor)});
  return slots_.size() - 1;
}

std::size_t Region::slots() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

void Region::finish(const std::vector<bool>& is_written, std::vector<Leaf> leaves,
                    std::vector<WriteWatch::Written> written) {
  if (slots() == 0) return;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].is_written = is_written[i];
    if (!inputs_[i].version.has_changed()) continue;
    throw UsageError(text("a checkpointed function writes to its input ", i,
                          ", so it could not be recomputed from it"),
                     {.hint = "Make its first operation work out of place, or pass copies: "
                              "{.copy_inputs = true}."});
  }
  leaves_ = std::move(leaves);
  written_ = std::move(written);
  if (snapshot_) {
    for (std::size_t i = 0; i < modules_->buffers.size(); ++i) {
      const at::Tensor& buffer = modules_->buffers[i];
      if (!same_value(buffer, snapshot_->buffers()[i])) changed_buffers_.push_back(i);
    }
    snapshot_->note_parameters(*modules_);
    for (const auto& [name, parameter] : modules_->parameters) {
      for (Leaf& leaf : leaves_) {
        if (leaf.tensor == parameter.unsafeGetTensorImpl())
          leaf.words = text("parameter '", name, "'");
      }
    }
  }
  finished_ = true;
}

at::Tensor Region::take(std::size_t slot) {
  const int task = torch::autograd::get_current_graph_task_id();
  at::Tensor found = find(task, slot);
  if (found.defined()) return found;
  // If two device threads need tensors of the same backward, one computes them for both. The other
  // never waits for a backward: a backward inside of the function might need the waiting thread.
  std::unique_lock running(running_, std::defer_lock);
  if (!runs_backward_) {
    running.lock();
    found = find(task, slot);
    if (found.defined()) return found;
  }
  auto results = recompute();
  found = std::exchange(results.at(slot), at::Tensor());
  if (task != no_task) keep(task, std::move(results));
  return found;
}

at::Tensor Region::find(int task, std::size_t slot) {
  const std::lock_guard lock(mutex_);
  const auto results = results_.find(task);
  if (results == results_.end() || slot >= results->second.size()) return {};
  return std::exchange(results->second[slot], at::Tensor());
}

// Keeps the results until they are taken, the graph is freed, or the backward ends: it may need
// fewer than a run computes.
void Region::keep(int task, std::vector<at::Tensor> results) {
  bool is_first = false;
  std::vector<at::Tensor> dropped;  // freed after the lock
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!slots_[i].needed) results[i] = at::Tensor();
    }
    const auto [known, added] = results_.try_emplace(task);
    is_first = added;
    dropped = std::exchange(known->second, std::move(results));
  }
  if (!is_first) return;
  torch::autograd::Engine::get_default_engine().queue_callback([region = weak_from_this(), task] {
    const auto self = region.lock();
    if (!self) return;
    std::map<int, std::vector<at::Tensor>>::node_type gone;
    const std::lock_guard lock(self->mutex_);
    gone = self->results_.extract(task);
  });
}

void Region::release(std::size_t slot) {
  std::vector<at::Tensor> gone;
  const std::lock_guard lock(mutex_);
  slots_[slot].needed = false;
  slots_[slot].version = {};
  for (auto& [task, results] : results_) {
    if (slot < results.size()) gone.push_back(std::exchange(results[slot], at::Tensor()));
  }
}

void Region::check_unchanged() const {
  const std::string hint =
      "Change it after backward(), or change a clone; call the optimizer's step() after "
      "backward(), and call forward() again before the next backward().";
  const auto throw_changed = [&](const std::string& what) {
    throw StateError(text(what,
                          " was changed in place between a checkpointed function and its "
                          "backward, which must recompute the function"),
                     {.hint = hint});
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].version.has_changed()) throw_changed(text("input ", i));
  }
  for (const Leaf& leaf : leaves_) {
    if (leaf.version.has_changed()) throw_changed(leaf.words);
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].version.has_changed())
      throw_changed(text("tensor ", i, " that it saved (", slots_[i].saved.metadata.words(), ")"));
  }
}

// Changes made by a recomputation are those of the first run.
void Region::record_versions() {
  for (Leaf& leaf : leaves_) leaf.version.note();
  if (snapshot_ && finished_) snapshot_->note_parameters(*modules_);
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) slot.version.note();
}

std::vector<at::Tensor> Region::unpack_inputs() const {
  std::vector<at::Tensor> tensors;
  for (const Input& input : inputs_) {
    at::Tensor tensor = input.plain;
    if (input.version.counter.enabled()) {
      tensor = input.saved.unpack().detach();
      if (input.restore) tensor = input.restore(tensor);
      tensor.requires_grad_(input.requires_grad);
      // Writing to a leaf of a graph is an error, so pass a copy.
      if (input.is_written) tensor = nn::clone_with_strides(tensor);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// The tensors that the function changes and that must be restored.
std::vector<at::Tensor> Region::kept_buffers(std::vector<at::Tensor>& values) const {
  std::vector<at::Tensor> buffers;
  for (const auto& [tensor, before] : written_) {
    buffers.push_back(tensor);
    values.push_back(before);
  }
  if (!snapshot_) return buffers;
  for (std::size_t i = 0; i < modules_->buffers.size(); ++i) {
    const at::Tensor& buffer = modules_->buffers[i];
    const at::Tensor& value = snapshot_->buffers()[i];
    const bool changes =
        std::find(changed_buffers_.begin(), changed_buffers_.end(), i) != changed_buffers_.end();
    if (!changes && same_value(buffer, value)) continue;
    buffers.push_back(buffer);
    values.push_back(value);
  }
  return buffers;
}

std::vector<at::Tensor> Region::recompute() {
  check_unchanged();
  std::vector<SavedTensor> expected;
  {
    const std::lock_guard lock(mutex_);
    for (const Slot& slot : slots_) expected.push_back(slot.saved);
  }
  const at::AutoGradMode grad_mode(true);
  auto inputs = unpack_inputs();
  const auto run = std::make_shared<Recomputation>(
      std::move(expected),
      Recomputation::Options{.early_stop = options_.early_stop, .may_save_more = !finished_});
  try {
    std::vector<at::Tensor> values;
    const std::vector<at::Tensor> buffers = kept_buffers(values);
    const RestoredContext context(current_device_, autocast_);
    std::optional<nn::Snapshot::Again> again;
    if (snapshot_) again.emplace(*snapshot_, *modules_);
    nn::BufferKeeper keeper(buffers);
    keeper.put_in(values);
    std::optional<RandomTape::Replay> replay;
    if (options_.keep_random) replay.emplace(tape_);
    std::optional<nn::LayerRun> layer_run;
    if (layer_run_) layer_run.emplace(*layer_run_);
    run->call(function_, std::move(inputs));
    run->separate_from(buffers);
  } catch (...) {
    record_versions();
    rethrow_with_context("while recomputing a checkpointed function for its backward");
  }
  record_versions();
  return run->take_results();
}

}  // namespace trestle::recompute
