#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trestle/nn/boundary.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/segment.h"
#include "trestle/nn/snapshot.h"
#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/stage_value.h"

// One stage: the layers between two cuts, and what they do with one micro-batch.
namespace trestle::pipeline {

enum class GraphMode {
  Keep,       // forward with its graph, for a backward
  Recompute,  // forward without: it will be run again before its backward
  None,       // forward that is never differentiated
};

// One micro-batch on its way through one stage, from F to the end of B.
struct Pass {
  std::vector<StageValue> inputs;             // as they arrived; kept for R, else gone after F
  std::vector<bool> input_wants_gradient;     // of `inputs`, from F on
  std::string input_shapes;                   // the same, for messages
  std::uint64_t input_kinds = 0;              // the same: a hash of dtypes and Nones
  std::optional<nn::Snapshot> snapshot;       // what R needs
  std::vector<std::uint32_t> input_versions;  // of `inputs`, where R needs them
  // From R to the end of B: its graph may have saved buffers.
  std::shared_ptr<nn::BufferKeeper> buffers_again;
  std::optional<nn::GradientSink> sink;             // where B leaves the inputs' gradients
  std::vector<bool> wants_gradient;                 // of plan.outputs and then of model_outputs
  std::vector<torch::autograd::Edge> output_edges;  // where each output's gradient enters the graph
  nn::Values model_outputs;  // last stage only: with their graph, until the loss has been taken
  std::vector<std::uint64_t> node_numbers;  // autograd's counter before each layer
};

class Stage {
 public:
  // Looks up parameters and buffers: the layers' modules are made, and on `device`, by then.
  Stage(const nn::Graph& graph, const Cut& cut, int index, at::Device device);

  // Throws StateError, with the layer, where a parameter or buffer is no longer on the stage's device:
  // the stage's inputs come to that one. A cast to another type is fine.
  void check_devices() const;

  // Runs the layers on pass.inputs. With GraphMode::Keep the pass then holds all that backward()
  // needs, and no tensor that the graph itself does not need; with GraphMode::Recompute its inputs
  // and a snapshot for recompute(). `key` keys the random numbers. Returns what goes on, for each of
  // plan.outputs.
  //
  // The first run in each mode of the modules finds out which inputs are written to in place (on
  // copies), and, with GraphMode::Recompute, which outputs want a gradient (with a graph, that is
  // let go at once).
  std::vector<StageValue> forward(Pass& pass, GraphMode mode, nn::BufferCopies& copies,
                                  const nn::RunKey& key) const;

  // Runs the layers again, with their graph, to the same bits: everything as in forward(), and
  // afterwards as if they had run only once. With Buffers::Move they find the buffers as they are,
  // and what they do to them stays, as in torchgpipe.
  enum class Buffers { PutBack, Move };
  void recompute(Pass& pass, Buffers buffers = Buffers::PutBack) const;

  // From the gradients of plan.outputs and of the model's outputs (last stage; empty elsewhere),
  // None for "none came", to the gradients of plan.inputs. Parameter gradients are accumulated.
  // Ends the pass. Autocast is off meanwhile, as torch advises for a backward.
  nn::Values backward(Pass& pass, const nn::Values& output_gradients,
                      const nn::Values& model_output_gradients) const;

  // The same, from a loss that was computed from pass.model_outputs; `gradient` is the gradient of
  // the loss.
  nn::Values backward_from_loss(Pass& pass, const nn::Values& output_gradients,
                                const at::Tensor& loss, const at::Tensor& gradient) const;

  const StagePlan& plan() const { return plan_; }
  at::Device device() const { return device_; }
  int index() const { return index_; }
  bool is_last() const { return is_last_; }
  const std::string& layer_name(int layer) const { return graph_.layers[layer].name; }

  // The layer whose forward made autograd node number `node`, or "" if it was none of them.
  std::string layer_of_node(const Pass& pass, std::uint64_t node) const;

  // Parameters and buffers of the stage's layers, each once.
  std::vector<at::Tensor> parameters() const;
  const std::vector<at::Tensor>& buffers() const { return modules_.buffers; }
  const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_.modules;
  }

 private:
  // Which outputs want a gradient, in each mode that has been seen; not known of those that were
  // None, or of a type without gradients.
  struct Learned {
    enum class Wish : std::uint8_t { Unknown, WantsGradient, WantsNoGradient };

    std::optional<std::vector<Wish>> find(std::uint64_t mode);
    void add(std::uint64_t mode, const std::vector<bool>& wants_gradient,
             const std::vector<bool>& differentiable);

    std::mutex mutex;
    std::unordered_map<std::uint64_t, std::vector<Wish>> wishes;
  };

  std::uint64_t mode_of(bool with_graph, const Pass& pass) const;
  nn::Segment::Result run(Pass& pass, bool with_graph, const nn::RunKey& key) const;
  std::vector<StageValue> hand_on(Pass& pass, nn::Segment::Result result) const;
  nn::Values finish(Pass& pass, std::vector<torch::autograd::Edge> roots,
                    std::vector<at::Tensor> gradients, const nn::Values& output_gradients) const;

  const nn::Graph& graph_;
  StagePlan plan_;
  int index_;
  at::Device device_;
  bool is_last_;
  nn::Segment segment_;  // its outputs: plan.outputs, then (last stage) the model's
  nn::ModuleState modules_;
  std::shared_ptr<nn::Boundary> boundary_;
  std::shared_ptr<Learned> learned_;
};

}  // namespace trestle::pipeline
