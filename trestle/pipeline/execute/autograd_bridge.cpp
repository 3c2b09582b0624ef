#include "trestle/pipeline/execute/autograd_bridge.h"

#include <ATen/Functions.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "trestle/base/error.h"
#include "trestle/device/stream.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/torch_versions.h"
#include "trestle/device/transfer.h"
#include "trestle/pipeline/execute/micro_batch.h"

namespace trestle::pipeline {
namespace {

using torch::autograd::variable_list;

// Shared by the two nodes.
struct CaughtGradients {
  variable_list gradients;
  std::atomic<bool> used = false;
};

[[noreturn]] void refuse_backward(const std::string& what, const std::string& hint) {
  throw StateError(what, {.hint = hint});
}

// The inverse of split(), which put a 0-dim tensor into every micro-batch.
at::Tensor merge_gradients(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return {};
  if (gradients.size() == 1) return gradients[0];
  return gradients[0].dim() == 0 ? at::stack(gradients).sum(0) : at::cat(gradients);
}

struct CatchBackward : torch::autograd::Node {
  std::shared_ptr<CaughtGradients> caught;

  variable_list apply(variable_list&& gradients) override {
    // Refuses before it overwrites or runs anything.
    const auto* only = torch::autograd::get_current_graph_task_exec_info();
    if (only != nullptr && !only->empty() && !is_in_input_grad()) {
      refuse_backward(
          "grad() or backward() with chosen inputs through pipeline.forward(): the pipeline always "
          "accumulates into the "
          "grad() of all its parameters",
          "Call loss.backward() and read grad() of the tensors you want.");
    }
    if (at::GradMode::is_enabled()) {
      refuse_backward(
          "backward(create_graph = true) through pipeline.forward(): a pipeline's backward cannot "
          "be differentiated again",
          "Use the plain model where second derivatives are needed.");
    }
    if (caught->used.exchange(true)) {
      refuse_backward(
          "a second backward through one pipeline.forward(): its stages freed their graphs in the "
          "first",
          "Call forward() again, or add the losses and call backward() once.");
    }
    caught->gradients = std::move(gradients);
    return {at::zeros({})};
  }
  std::string name() const override { return "PipelineCatchBackward"; }

 private:
  // Inside of another pipeline's I, which has replaced the leaf behind the second node.
  bool is_in_input_grad() const {
    const auto& leaf = next_edge(0).function->next_edges().back().function;
    return dynamic_cast<const torch::autograd::AccumulateGrad*>(leaf.get()) == nullptr;
  }
};

struct DriveBackward : torch::autograd::Node {
  std::shared_ptr<CaughtGradients> caught;
  std::shared_ptr<MiniBatchState> state;
  std::shared_ptr<PartitionedModel> model;
  // The current streams of the forward. The engine runs the first node, and orders its gradients,
  // in these.
  std::vector<c10::Stream> streams;
  // [micro-batch][output] the size of dimension 0 before the outputs were merged.
  std::vector<std::vector<std::int64_t>> output_sizes;

  variable_list apply(variable_list&&) override {
    const auto own_state = std::exchange(state, nullptr);
    const auto own_model = std::exchange(model, nullptr);
    variable_list result;
    std::vector<std::pair<at::Device, device::StreamEvent>> done;
    {
      const device::StreamScope forward_streams(streams);
      split_gradients(*own_state);
      if (own_state->inputs.begin_backward) own_state->inputs.begin_backward();
      caught->gradients.clear();
      if (on_autograd_device_thread()) {
        own_model->executor.run_here(*own_state, Phase::Backward);
      } else {
        own_model->executor.run(*own_state, Phase::Backward);
      }
      own_model->remember(*own_state);
      result = input_gradients(*own_state);
      for (const auto& stage : own_model->stages)
        done.emplace_back(stage.device(), device::StreamEvent()).second.record(stage.device());
    }
    // To the engine this is a CPU node. The engine's current streams must wait for the operators
    // that ran here.
    for (const auto& [device, event] : done) event.wait(device);
    result.emplace_back();  // for the leaf that keeps the node in the graph
    return result;
  }
  void release_variables() override {
    state.reset();
    model.reset();
  }
  std::string name() const override { return "PipelineBackward"; }

 private:
  // Splits the gradient of each output into micro-batches.
  void split_gradients(MiniBatchState& to) const {
    auto& gradients = to.last().loss_gradients;
    gradients.assign(to.micro_batches(), nn::Values(caught->gradients.size()));
    for (std::size_t i = 0; i < caught->gradients.size(); ++i) {
      if (!caught->gradients[i].defined()) continue;
      if (to.micro_batches() == 1) {
        gradients[0][i] = caught->gradients[i];
        continue;
      }
      std::int64_t begin = 0;
      for (int m = 0; m < to.micro_batches(); ++m) {
        gradients[m][i] = caught->gradients[i].narrow(0, begin, output_sizes[m][i]);
        begin += output_sizes[m][i];
      }
    }
  }
};

}  // namespace

nn::Values input_gradients(const MiniBatchState& state) {
  nn::Values result;
  for (std::size_t i = 0; i < state.inputs.wants_gradient.size(); ++i) {
    std::vector<at::Tensor> gradients;
    for (int m = 0; m < state.micro_batches(); ++m) {
      const at::Tensor& given = state.inputs.batch[m][i];
      if (!state.inputs.wants_gradient[i]) continue;
      at::Tensor sum;
      for (const auto& stage : state.stage_states) {
        const auto& stage_gradients = stage.micro_batches[m].model_input_gradients;
        if (stage_gradients.size() <= i || !stage_gradients[i].defined()) continue;
        const at::Tensor gradient = to_device(stage_gradients[i], given.device());
        sum = sum.defined() ? sum + gradient : gradient;
      }
      gradients.push_back(sum.defined() ? sum : at::zeros_like(given));
    }
    result.push_back(merge_gradients(gradients));
  }
  return result;
}

std::vector<bool> need_gradients(const nn::Values& inputs) {
  std::vector<bool> need;
  for (const auto& input : inputs) need.push_back(input.defined() && input.requires_grad());
  return need;
}

void pass_on_input_gradients(const nn::Values& inputs, const MiniBatchState& state, double scale) {
  const auto& wants = state.inputs.wants_gradient;
  if (std::find(wants.begin(), wants.end(), true) == wants.end()) return;
  const nn::Values gradients = input_gradients(state);
  variable_list roots, seeds;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!wants[i] || !gradients[i].defined()) continue;
    roots.push_back(inputs[i]);
    seeds.push_back(scale == 1 ? gradients[i] : gradients[i] * scale);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
}

bool on_autograd_device_thread() { return c10::getThreadName().rfind("pt_autograd", 0) == 0; }

nn::Values attach_backward(const nn::Values& inputs, std::shared_ptr<MiniBatchState> state,
                           std::shared_ptr<PartitionedModel> model) {
  nn::Values outputs = merge(state->last().outputs);
  const std::vector<bool> wants = state->last().outputs_want_gradient;
  std::vector<std::vector<std::int64_t>> sizes;
  for (const auto& values : std::exchange(state->last().outputs, {})) {
    auto& row = sizes.emplace_back();
    for (const auto& value : values)
      row.push_back(value.defined() && value.dim() > 0 ? value.size(0) : 0);
  }
  if (std::find(wants.begin(), wants.end(), true) == wants.end()) return outputs;

  auto caught = std::make_shared<CaughtGradients>();
  auto drive = make_node<DriveBackward>();
  drive->caught = caught;
  drive->state = std::move(state);
  drive->model = std::move(model);
  drive->streams = device::current_streams({drive->model->last_device()});
  drive->output_sizes = std::move(sizes);
  torch::autograd::edge_list edges;
  for (const auto& input : inputs) {
    edges.push_back(input.defined() && input.requires_grad()
                        ? torch::autograd::impl::gradient_edge(input)
                        : torch::autograd::Edge());
  }
  // With this leaf the engine runs the node even if no input needs a gradient.
  edges.push_back(torch::autograd::impl::gradient_edge(at::zeros({}).set_requires_grad(true)));
  drive->set_next_edges(std::move(edges));
  drive->add_input_metadata(at::zeros({}));

  auto node = make_node<CatchBackward>();
  node->caught = caught;
  node->set_next_edges({torch::autograd::Edge(drive, 0)});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (wants[i]) {
      torch::autograd::create_gradient_edge(outputs[i], node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return outputs;
}

}  // namespace trestle::pipeline
