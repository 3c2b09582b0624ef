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
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/segment.h"
#include "trestle/nn/snapshot.h"
#include "trestle/pipeline/execute/cut.h"
#include "trestle/pipeline/execute/split_backward.h"
#include "trestle/pipeline/transport/stage_value.h"
#include "trestle/recompute/checkpointed_segment.h"
#include "trestle/recompute/recomputed_nodes.h"

namespace trestle::pipeline {

enum class GraphMode {
  Keep,       // a forward with its graph, for a backward
  Recompute,  // a forward without a graph: it is recomputed before its backward
  None,       // a forward that has no backward
};

// Which gradients a backward computes: all (B), or those of the inputs (I), and those of the
// parameters later (W).
enum class BackwardPart { Whole, Inputs };

// One micro-batch in one stage, from F to the end of B or W.
struct Pass {
  std::vector<StageValue> inputs;             // as they arrived; kept for R, else freed after F
  std::vector<bool> input_wants_gradient;     // of `inputs`, from F on
  std::string input_shapes;                   // the same, for error messages
  std::uint64_t input_kinds = 0;              // the same: a hash of dtypes and Nones
  std::optional<nn::Snapshot> snapshot;       // for R
  std::vector<std::uint32_t> input_versions;  // of `inputs`, for R
  // From R to B or W: the buffers' values after R. The graph may have saved buffers, and other
  // micro-batches run between R, I and W.
  std::vector<at::Tensor> buffers_again;
  std::optional<nn::GradientSink> sink;             // receives the inputs' gradients in B
  std::vector<bool> wants_gradient;                 // of plan.outputs and then of model_outputs
  std::vector<torch::autograd::Edge> output_edges;  // where each output's gradient enters the graph
  nn::Values model_outputs;  // last stage only: with their graph, until the loss is computed
  std::vector<std::uint64_t> node_numbers;             // autograd's counter before each layer
  std::vector<recompute::NodeRange> recomputed_nodes;  // in the backward
  std::optional<WeightGradients> weights;              // from I to W
  std::vector<std::string> whole_layers;               // that I could not cut
};

// The layers between two cuts, and how one micro-batch runs through them.
class Stage {
 public:
  // The layers' modules must exist and be on `device`: the stage looks up parameters and buffers.
  // The layers are recomputed in `checkpoint_segments` segments; 0 = none is.
  Stage(const nn::Graph& graph, const Cut& cut, int index, at::Device device,
        int checkpoint_segments);

  // Throws StateError, with the layer's name, if a parameter or buffer is no longer on the stage's
  // device. A cast to another dtype is allowed.
  void check_devices() const;

  // Runs the layers on pass.inputs. Returns the values of plan.outputs. With GraphMode::Keep the
  // pass then holds what backward() needs, and no tensor that the graph does not need; with
  // GraphMode::Recompute its inputs and a snapshot for recompute(). `key` keys the random numbers.
  //
  // The first run in each mode of the modules uses copies of the inputs, to find out which ones are
  // written to in place. With GraphMode::Recompute it builds a graph, to find out which outputs
  // need a gradient, and frees the graph at once.
  std::vector<StageValue> forward(Pass& pass, GraphMode mode, nn::BufferCopies& copies,
                                  const nn::RunKey& key) const;

  // Runs the layers again, with their graph, to the same bits as forward(). Buffers::Restore gives
  // the layers the buffers that forward() saw, and undoes their changes. Buffers::Change gives them
  // the current buffers and keeps their changes, as torchgpipe does.
  enum class Buffers { Restore, Change };
  void recompute(Pass& pass, Buffers buffers = Buffers::Restore) const;

  // Accumulates the parameters' gradients, and returns the gradients of plan.inputs. Arguments: the
  // gradients of plan.outputs, and on the last stage those of the model's outputs (else empty);
  // None = no gradient. Ends the pass. Autocast is off during a backward, as torch recommends.
  // With BackwardPart::Inputs the parameters' gradients wait for accumulate_weights().
  nn::Values backward(Pass& pass, BackwardPart part, const nn::Values& output_gradients,
                      const nn::Values& model_output_gradients) const;

  // The same, from a loss that was computed from pass.model_outputs, and the gradient of the loss.
  nn::Values backward_from_loss(Pass& pass, BackwardPart part, const nn::Values& output_gradients,
                                const at::Tensor& loss, const at::Tensor& gradient) const;

  // After a backward of BackwardPart::Inputs: accumulates the parameters' gradients. Ends the pass.
  void accumulate_weights(Pass& pass) const;

  const StagePlan& plan() const { return plan_; }
  at::Device device() const { return device_; }
  int index() const { return index_; }
  bool is_last() const { return is_last_; }
  const std::string& layer_name(int layer) const { return graph_.layers[layer].name; }

  // The layer whose forward made autograd node number `node`; "" if no layer of the stage did.
  std::string layer_of_node(const Pass& pass, std::uint64_t node) const;

  // The parameters and buffers of the stage's layers, each once.
  std::vector<at::Tensor> parameters() const;
  const std::vector<at::Tensor>& buffers() const { return modules_.buffers; }
  const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_.modules;
  }

 private:
  // Which outputs need a gradient, in each mode that has run. Unknown for an output that was None,
  // or of a dtype without gradients.
  struct OutputGradients {
    enum class Need : std::uint8_t { Unknown, Needed, NotNeeded };

    std::optional<std::vector<Need>> find(std::uint64_t mode);
    void add(std::uint64_t mode, const std::vector<bool>& wants_gradient,
             const std::vector<bool>& differentiable);

    std::mutex mutex;
    std::unordered_map<std::uint64_t, std::vector<Need>> needs;
  };
  enum class Autograd { On, Off };

  std::uint64_t mode_key(Autograd autograd, const Pass& pass) const;
  std::vector<StageValue> forward_for_recompute(Pass& pass, nn::BufferCopies& copies,
                                                const nn::RunKey& key) const;
  nn::Segment::Result run(Pass& pass, Autograd autograd, const nn::RunKey& key) const;
  std::vector<StageValue> detach_outputs(Pass& pass, nn::Segment::Result result) const;
  // Gives the buffers the values that R left, while it lives.
  std::unique_ptr<nn::BufferKeeper> buffers_of(const Pass& pass) const;
  nn::Values finish(Pass& pass, BackwardPart part, GradientRoots roots,
                    const nn::Values& output_gradients) const;
  nn::Values input_gradients(Pass& pass, BackwardPart part, const GradientRoots& roots) const;

  const nn::Graph& graph_;
  StagePlan plan_;
  int index_;
  at::Device device_;
  bool is_last_;
  nn::CheckpointedSegment
      segment_;  // outputs: plan.outputs, then on the last stage the model's outputs
  nn::ModuleState modules_;
  std::shared_ptr<nn::Boundary> boundary_;
  std::shared_ptr<OutputGradients> output_gradients_;
};

}  // namespace trestle::pipeline
