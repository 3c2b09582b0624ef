#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/device/named_tensors.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/parameter_slice.h"
#include "trestle/nn/value.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/pipeline/pipeline_options.h"
#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::nn {
class Layers;
}  // namespace trestle::nn
namespace trestle::precision {
class GradientScaler;
}

// Trains a model that is cut into stages on several devices.
//
//   trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2, 512_MiB),
//                                    .micro_batches = 4, .schedule = "1f1b",
//                                    .recompute = trestle::Recompute::ExceptLast});
//   torch::optim::Adam optimizer(pipeline.parameters(), 1e-3);
//   for (auto& [image, mask] : loader) {
//     optimizer.zero_grad();
//     auto result = pipeline.step(image, mask, trestle::nn::cross_entropy());
//     optimizer.step();
//   }
//
// The loss and all gradients equal those of the unsplit model (to rounding), for every balance,
// schedule, number of micro-batches and recomputation. For a model with batch statistics or
// dropout, the unsplit model runs over the same micro-batches one after the other, with the same
// random keys.
//
// A step can also update the weights, with one optimizer a stage, on the stage's own rank and
// device. The table then has two more kinds of action, which every timeline shows: NORM computes
// the norm of all gradients; STEP clips the gradients, steps the optimizer and frees the gradients:
//
//   const auto adamw = [](int, const trestle::NamedTensors& own) {
//     std::vector<at::Tensor> parameters;
//     for (auto& [name, tensor] : own) parameters.push_back(tensor);
//     return std::make_unique<torch::optim::AdamW>(parameters, 1e-3);
//   };
//   trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2, 512_MiB),
//                                    .micro_batches = 4,
//                                    .optimizer = {.make = adamw, .clip_grad_norm = 1.0}});
//   for (auto& [image, mask] : loader) pipeline.step(image, mask, trestle::nn::cross_entropy());
//
// Over ranks (PipelineOptions::group) every rank makes the same Pipeline from the same model, and
// makes the same calls in the same order. If layers are given as factories, a rank makes only the
// layers of its own stages, with the weights that the unsplit model would have. The first rank
// needs the model's inputs, as does every rank whose stages use one; other ranks may pass None.
// Only the last rank needs the target:
//
//   auto world = trestle::init();
//   trestle::Pipeline pipeline(net, {.group = world.group(), .balance = {13, 9},
//                                    .micro_batches = 4, .schedule = "1f1b"});
//   torch::optim::Adam optimizer(pipeline.parameters(), 1e-3);      // the rank's own
//   auto result = pipeline.step(image, mask, trestle::nn::cross_entropy());  // one loss everywhere
//
// An error on one rank ends the call on all ranks: the other ranks throw RankError with its
// message.
namespace trestle {

// The result of one training step.
struct StepResult {
  // The loss of the whole mini-batch. For an additive loss: the weighted mean over the
  // micro-batches.
  double loss = 0;
  int micro_batches = 0;  // of all replicas together
  double weight = 0;      // what the loss is a mean over: samples, pixels, tokens
  // The model's first output for the mini-batch, detached, on the last device; see StepOptions.
  at::Tensor output = {};
  // With PipelineOptions::optimizer and Update::Now: the norm of all gradients, of all ranks,
  // before clipping.
  std::optional<double> gradient_norm = {};
  // Whether the weights changed. They do not if the norm is infinite or NaN, on any rank.
  bool stepped = false;
};

struct StepOptions {
  enum class Output { Discard, Keep };
  Output output = Output::Discard;  // Keep needs memory on the last device
  // Every gradient of the step is multiplied by this; the returned loss is not. Several steps give
  // the gradient of one larger mini-batch if each is scaled by its share of the weight.
  double gradient_scale = 1;
  // The number of the step's first micro-batch. Above 0 the step continues the previous one: its
  // random numbers are those of a larger mini-batch's later micro-batches.
  std::int64_t first_micro_batch = 0;
  // With PipelineOptions::optimizer: Later keeps the gradients, and the next step adds to them.
  enum class Update { Now, Later };
  Update update = Update::Now;
  // With PipelineOptions::optimizer: this rank's scaler for fp16; over ranks all have the same
  // options. The losses are multiplied by its scale. The update divides the gradients by it and
  // calls scaler->update(), once for all steps that add up.
  precision::GradientScaler* scaler = nullptr;
  // With PipelineOptions::optimizer: what becomes of gradients whose norm is infinite or NaN. Keep
  // leaves them as they are, still multiplied by the scaler's scale, so that the caller can find
  // the parameter.
  enum class NonfiniteGradients { Clear, Keep };
  NonfiniteGradients nonfinite = NonfiniteGradients::Clear;
};

class Pipeline {
 public:
  // Cuts `model` and moves each stage to its device, in place: modules, parameters and their names
  // stay the same objects. Gradients move with their parameters; for an optimizer's state there is
  // optim::move_state. Throws UsageError, with all mistakes in one message, for a balance that does
  // not cover the layers, an empty stage, more stages than layers, an unknown schedule, a table
  // with actions that a pipeline cannot run, and wiring mistakes.
  Pipeline(const nn::Layers& model, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // One training step: forward, loss and backward of all micro-batches in the schedule's order.
  // Gradients are accumulated into the parameters' grad(), as by backward(). Inputs that need a
  // gradient get it too, also through the graph that computed them; a scaler's scale is divided out
  // of it. Over ranks each rank's inputs get the gradient of that rank's stages. Autocast is on in
  // forwards and loss, not in backwards. Tensors are split along dimension 0. `target` may be None
  // (at::Tensor()) for a loss of the output alone. Throws UsageError for a target that needs a
  // gradient; for a whole-batch loss under a schedule that starts a backward before the last
  // forward; and for a layer, by name, that writes to a value which another layer uses.
  //
  // Two mini-batches as one of twice the size:
  //
  //   auto first = pipeline.step(x1, y1, loss, {.gradient_scale = 0.5});
  //   pipeline.step(x2, y2, loss,
  //                 {.gradient_scale = 0.5, .first_micro_batch = first.micro_batches});
  //
  // With PipelineOptions::optimizer the first of the two has `.update =
  // StepOptions::Update::Later`.
  //
  // A layer or a loss may throw in the middle of a step. Batch-norm statistics and step_number()
  // then stay advanced. With PipelineOptions::optimizer the gradients are cleared, also those of
  // earlier steps with Update::Later: repeat the mini-batch from its first step (a step with
  // first_micro_batch > 0 throws StateError). Without it, some gradients are added already: call
  // zero_grad(). An optimizer that throws may leave some stages updated.
  StepResult step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options = {});
  StepResult step(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options = {});

  // The other way: forward() now, and the caller's own backward() runs the pipeline's (GPipe
  // order). The output is on the last device. Throws StateError for a second backward through one
  // output, and for grad() with the pipeline's own inputs; grad() with parameters reports them as
  // unused.
  at::Tensor forward(const at::Tensor& input);
  nn::Values forward(const nn::Values& inputs);

  // The caller's backward over ranks. The last rank passes `loss`, computed from what forward()
  // returned. On the other ranks forward() returned None: they pass no loss, and the call runs the
  // rank's own stages. Each forward() with gradients needs its backward() before the next
  // forward(). In one process: loss.backward().
  void backward(const at::Tensor& loss = {});

  // Forwards only: evaluation mode during the call, no graph, no recomputation, no batch-norm
  // updates. A net that draws random numbers in evaluation mode draws different ones at each call,
  // and the same ones again after set_step_number().
  at::Tensor evaluate(const at::Tensor& input);
  nn::Values evaluate(const nn::Values& inputs);

  // Parameters and buffers under the names of the unsplit model. Over ranks: this rank's own;
  // throws StateError before the model is cut.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  // The places of those parameters of which this rank holds a slice (tensor parallelism).
  nn::ParameterSlices parameter_slices() const;
  std::vector<at::Tensor> stage_parameters(int stage) const;
  void zero_grad();
  // The optimizer that PipelineOptions::optimizer made for a stage, for its learning rate or state;
  // null for a stage without parameters. Throws StateError without that option, and for a stage of
  // another rank.
  torch::optim::Optimizer* optimizer(int stage);
  // Clips the gradients of all stages together, before an optimizer's step (clip_grad_norm.h).
  // Returns their norm before clipping. Over ranks all ranks call this and grad_norm().
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options = {});
  double grad_norm(double p = 2) const;
  void train();
  void eval();

  // The number that keys the next step's random numbers; step() and forward() in training mode add
  // one. Set it to resume a run. Inside of a step, where first_micro_batch is above 0, set the
  // number after that step's, and the number of examples of its earlier calls on all replicas.
  std::int64_t step_number() const;
  void set_step_number(std::int64_t step, std::int64_t examples = 0);

  int stage_count() const;
  // Whether this process owns the stage: over ranks, whether it is one of this rank's.
  bool has_stage(int stage) const;
  // Whether idle cores are lent: CoreLending::On is set, and each rank has a virtual device of its
  // own in this process. Throws StateError before the model is cut.
  bool lends_cores() const;
  const std::vector<int>& balance() const;
  const Device& device(int stage) const;
  // The layers stay on their stages' devices: step(), forward(), evaluate() and profile() throw
  // StateError, with the layer's name, after one has moved. Casting layers is allowed.
  nn::Layers& model();
  const PipelineOptions& options() const;

  // The lowered table for `micro_batches`, as step() runs it. 0 = options().micro_batches; with
  // plan.split_size the number that the profiled mini-batch has, and UsageError before profile().
  schedule::Schedule schedule(int micro_batches = 0) const;

  // When each action of the last step, forward + backward, or evaluation began and ended, and the
  // most memory that its device held during it. Over ranks: this rank's actions.
  schedule::Timeline timeline() const;
  // Over ranks: all ranks' actions, on one clock. All ranks call it.
  schedule::Timeline gather_timeline() const;

  // Over ranks: the bytes of the tensors that this rank has sent since the pipeline was made.
  Bytes bytes_sent() const;

  // Measures each stage with one micro-batch of `inputs` (a mini-batch, split as by step()): times,
  // bytes, transfers. Parameters, gradients, buffers and random keys stay unchanged. The budgets of
  // virtual devices are off during the call, so that a plan that does not fit is measured too. The
  // costs are kept: an out-of-memory error then suggests what would fit.
  //
  // Over ranks all ranks call it, with the arguments of a step, and all get the costs of all
  // stages. Memory and transfers are measured one stage after the other. Times are measured on all
  // ranks at once, so that ranks which share cores or a network do so as in a step. predict() then
  // returns the same on all ranks, and lets each rank run independently.
  simulate::Costs profile(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss);

  // Replaces the costs, for example after adding the optimizer's state to `persistent`.
  void remember_costs(simulate::Costs costs);

  // One sentence on what would make a step fit the devices' budgets, by the costs of profile(). An
  // out-of-memory error contains it too. Over ranks profile() gathers the other ranks' budgets.
  std::string suggest_fit() const;

  // The simulator's timeline of one step with these costs; 0 = the number of micro-batches of the
  // profiled mini-batch. Its peaks are upper bounds: see simulate/memory.h.
  schedule::Timeline predict(const simulate::Costs& costs, int micro_batches = 0) const;

 private:
  class Impl;
  friend class NonfiniteSearch;  // find_nonfinite.cpp
  void check_stage(int stage) const;
  std::shared_ptr<Impl> impl_;
};

}  // namespace trestle
