#include "trestle/recompute/region.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/nn/layer.h"
#include "trestle/recompute/second_run.h"

namespace trestle::recompute {
namespace {

constexpr int no_task = -1;  // what libtorch says outside of a backward

void add_gpu(std::vector<at::Device>& gpus, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return;
  if (std::find(gpus.begin(), gpus.end(), tensor.device()) == gpus.end())
    gpus.push_back(tensor.device());
}

}  // namespace

Region::Region(const nn::CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
               std::shared_ptr<const nn::ModuleState> modules, RunAgain run_again)
    : options_(options),
      modules_(std::move(modules)),
      run_again_(std::move(run_again)),
      autocast_(nn::AutocastState::current()),
      current_device_(current_accelerator()) {
  for (const at::Tensor& tensor : inputs) {
    Input& input = inputs_.emplace_back();
    add_gpu(gpus_, tensor);
    if (!tensor.defined() || tensor.is_inference()) {
      input.plain = tensor;
      continue;
    }
    input.saved = torch::autograd::SavedVariable(tensor, /*is_output=*/false);
    input.requires_grad = tensor.requires_grad();
    input.version = Version::of(tensor);
  }
  if (!modules_) return;
  for (const auto& [name, parameter] : modules_->parameters) add_gpu(gpus_, parameter);
  nn::BufferCopies copies;
  snapshot_.emplace(*modules_, copies, nn::RunKey());
}

std::size_t Region::add_place(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  places_.push_back({.looks = Looks::of(tensor), .version = Version::of(tensor)});
  return places_.size() - 1;
}

std::size_t Region::places() const {
  const std::lock_guard lock(mutex_);
  return places_.size();
}

void Region::finish(const std::vector<bool>& is_written, std::vector<Leaf> leaves,
                    std::vector<WriteWatch::Written> written) {
  if (places() == 0) return;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].is_written = is_written[i];
    if (!inputs_[i].version.has_changed()) continue;
    throw UsageError(
        text("a checkpointed function writes to its input ", i,
             ", and could not be run again from it"),
        {.hint = "Make its first operation work out of place, or have it given copies: "
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

at::Tensor Region::take(std::size_t place) {
  const int task = torch::autograd::get_current_graph_task_id();
  at::Tensor found = find(task, place);
  if (found.defined()) return found;
  // Of two device threads that need the same backward's tensors, one computes them for both. The other
  // waits for no backward: where one runs inside, that might need the waiting thread.
  std::unique_lock running(running_, std::defer_lock);
  if (!runs_backward_) {
    running.lock();
    found = find(task, place);
    if (found.defined()) return found;
  }
  auto results = run_again();
  found = std::exchange(results.at(place), at::Tensor());
  if (task != no_task) keep(task, std::move(results));
  return found;
}

at::Tensor Region::find(int task, std::size_t place) {
  const std::lock_guard lock(mutex_);
  const auto results = results_.find(task);
  if (results == results_.end() || place >= results->second.size()) return {};
  return std::exchange(results->second[place], at::Tensor());
}

// Until they are taken, the graph goes, or the backward ends: it may need less than a run computes.
void Region::keep(int task, std::vector<at::Tensor> results) {
  bool is_first = false;
  std::vector<at::Tensor> dropped;  // behind the lock
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!places_[i].needed) results[i] = at::Tensor();
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

void Region::let_go(std::size_t place) {
  std::vector<at::Tensor> gone;
  const std::lock_guard lock(mutex_);
  places_[place].needed = false;
  places_[place].version = {};
  for (auto& [task, results] : results_) {
    if (place < results.size()) gone.push_back(std::exchange(results[place], at::Tensor()));
  }
}

void Region::check_unchanged() const {
  const std::string hint =
      "Change it after backward(), or change a clone; call the optimizer's step() after "
      "backward(), and "
      "the forward again before the next one.";
  const auto refuse = [&](const std::string& what) {
    throw StateError(text(what,
                          " was changed in place between a checkpointed function and its "
                          "backward, which has to run the function again"),
                     {.hint = hint});
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].version.has_changed()) refuse(text("input ", i));
  }
  for (const Leaf& leaf : leaves_) {
    if (leaf.version.has_changed()) refuse(leaf.words);
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].version.has_changed())
      refuse(text("tensor ", i, " that it saved (", places_[i].looks.words(), ")"));
  }
}

// What a second run has changed, the first one did too.
void Region::note_versions() {
  for (Leaf& leaf : leaves_) leaf.version.note();
  if (snapshot_ && finished_) snapshot_->note_parameters(*modules_);
  const std::lock_guard lock(mutex_);
  for (Place& place : places_) place.version.note();
}

std::vector<at::Tensor> Region::unpack_inputs() const {
  std::vector<at::Tensor> tensors;
  for (const Input& input : inputs_) {
    at::Tensor tensor = input.plain;
    if (input.version.counter.enabled()) {
      tensor = input.saved.unpack().detach();
      tensor.requires_grad_(input.requires_grad);
      // Written to, a tensor that begins a graph would be refused.
      if (input.is_written) tensor = tensor.clone();
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// What the function changes and must find, or leave, as it was.
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

std::vector<at::Tensor> Region::run_again() {
  check_unchanged();
  std::vector<Looks> looks;
  {
    const std::lock_guard lock(mutex_);
    for (const Place& place : places_) looks.push_back(place.looks);
  }
  const at::AutoGradMode grad_mode(true);
  auto inputs = unpack_inputs();
  const auto run = std::make_shared<SecondRun>(
      std::move(looks),
      SecondRun::Options{.early_stop = options_.early_stop, .may_go_on = !finished_});
  try {
    std::vector<at::Tensor> values;
    const std::vector<at::Tensor> buffers = kept_buffers(values);
    const Surroundings surroundings(current_device_, autocast_);
    std::optional<nn::Snapshot::Again> again;
    if (snapshot_) again.emplace(*snapshot_, *modules_);
    nn::BufferKeeper keeper(buffers);
    keeper.put_in(values);
    std::optional<RandomTape::Replay> replay;
    if (options_.keep_random) replay.emplace(tape_);
    run->call(run_again_, std::move(inputs));
    run->separate_from(buffers);
  } catch (...) {
    note_versions();
    rethrow_with_context("while a checkpointed function ran again for its backward");
  }
  note_versions();
  return run->take_results();
}

}  // namespace trestle::recompute
