#pragma once

#include <torch/csrc/autograd/edge.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/pipeline/cut.h"

// One stage: the layers between two cuts, and what they do with one micro-batch.
namespace trestle::pipeline {

enum class GraphMode {
  Keep,     // forward with its graph, for a backward
  Discard,  // forward that will be recomputed, or never be differentiated
};

// One micro-batch on its way through one stage, from F to the end of B.
struct Pass {
  nn::Values inputs;                      // as they arrived, detached; kept for R
  std::vector<bool> input_requires_grad;  // does the producer want a gradient back?
  nn::Values leaves;                      // the same values as leaves of this stage's graph
  std::vector<torch::autograd::Edge>
      output_edges;          // where the gradient of each plan.outputs enters the graph
  nn::Values model_outputs;  // last stage only: with their graph, until the loss has been taken
  std::vector<std::uint64_t>
      node_numbers;  // autograd's counter before each layer: tells a node's layer
};

// What F hands on, for each of plan.outputs, detached.
struct Produced {
  nn::Values values;
  std::vector<bool> requires_grad;
};

class Stage {
 public:
  Stage(const nn::Graph& graph, const Cut& cut, int index, at::Device device);

  // Runs the layers on pass.inputs. Without a graph they are left as they are, for the
  // recomputation, also where a layer works in place. With GraphMode::Keep the pass then holds all
  // that backward() needs, and no output tensor that the graph itself does not need. `key` keys the
  // random numbers.
  Produced forward(Pass& pass, GraphMode mode, const nn::RunKey& key) const;

  // Runs the layers again, with their graph, to the same bits: same random key, buffers (batch-norm
  // statistics) as if they had run only once.
  void recompute(Pass& pass, const nn::RunKey& key) const;

  // From the gradients of plan.outputs and of the model's outputs (last stage; empty elsewhere),
  // None for "none came", to the gradients of plan.inputs. Parameter gradients are accumulated.
  // Ends the pass.
  nn::Values backward(Pass& pass, const nn::Values& output_gradients,
                      const nn::Values& model_output_gradients) const;

  // The same, from a loss that was computed from pass.model_outputs; `gradient` is the gradient of
  // the loss.
  nn::Values backward_from_loss(Pass& pass, const nn::Values& output_gradients,
                                const at::Tensor& loss, const at::Tensor& gradient) const;

  const StagePlan& plan() const { return plan_; }
  at::Device device() const { return device_; }
  bool is_last() const { return is_last_; }
  const std::string& layer_name(int layer) const { return graph_.layers[layer].name; }

  // The layer whose forward made autograd node number `node`, or "" if it was none of them.
  std::string layer_of_node(const Pass& pass, std::uint64_t node) const;

  // Parameters and buffers of the stage's layers.
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> buffers() const;

 private:
  nn::Values run_layers(Pass& pass, const nn::Values& inputs, const nn::RunKey& key,
                        nn::Values& model_outputs) const;
  nn::Values finish(Pass& pass, std::vector<torch::autograd::Edge> roots,
                    std::vector<at::Tensor> gradients, const nn::Values& output_gradients) const;

  const nn::Graph& graph_;
  StagePlan plan_;
  std::vector<ValueId> model_outputs_;
  at::Device device_;
  bool is_last_;
  // Does a layer change the stage's inputs in place? Found out by the first run without a graph.
  enum class InPlace { Unknown, No, Yes };
  std::shared_ptr<std::atomic<InPlace>> in_place_ =
      std::make_shared<std::atomic<InPlace>>(InPlace::Unknown);
  std::vector<std::vector<ValueId>> arguments_;  // for each of the stage's layers
};

}  // namespace trestle::pipeline
