#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/device.h"
#include "trestle/device/named_tensors.h"
#include "trestle/nn/batch_norm_statistics.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/value.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/pipeline/stage_hooks.h"
#include "trestle/precision/autocast.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::nn {
class Layers;
}  // namespace trestle::nn
namespace trestle::precision {
class GradientScaler;
}
namespace torch::optim {
class Optimizer;
}

// Trains a model that is cut over several devices.
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
// The loss and every gradient equal those of the unsplit model (to rounding), whatever the split,
// the schedule, the number of micro-batches and the recomputation. Where a model has batch
// statistics or dropout, "unsplit" means: run over the same micro-batches one after the other, with
// the same random keys.
//
// With an optimizer for each stage a step does the rest as well, on the stage's own rank and device, as actions of its table
// that every timeline shows: it takes the norm of all gradients (NORM), clips them, steps and lets them go (STEP):
//
//   trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2, 512_MiB), .micro_batches = 4,
//                                    .optimizer = [](int, const trestle::NamedTensors& own) {
//                                      std::vector<at::Tensor> parameters;
//                                      for (auto& [name, tensor] : own) parameters.push_back(tensor);
//                                      return std::make_unique<torch::optim::AdamW>(parameters, 1e-3);
//                                    },
//                                    .clip_grad_norm = 1.0});
//   for (auto& [image, mask] : loader) pipeline.step(image, mask, trestle::nn::cross_entropy());
//
// Over ranks (PipelineOptions::group) every rank makes the same Pipeline from the same model and
// makes the same calls in the same order. Where layers are given as factories, a rank makes its own
// stages' layers alone, with the weights that the unsplit model would have. The model's inputs are
// read on the ranks whose stages take them (the first, and the others may pass None), the target on
// the last rank alone:
//
//   auto world = trestle::init();
//   trestle::Pipeline pipeline(net, {.group = world.group(), .balance = {13, 9},
//                                    .micro_batches = 4, .schedule = "1f1b"});
//   torch::optim::Adam optimizer(pipeline.parameters(), 1e-3);      // the rank's own
//   auto result = pipeline.step(image, mask, trestle::nn::cross_entropy());  // one loss everywhere
//
// An error of one rank is every rank's: the others throw RankError, with the first one's reason.
namespace trestle {

using schedule::BackwardOrder;
using schedule::Recompute;

// What an idle stage's cores are for (schedule/lend_cores.h). How many threads an operator uses may
// change the last bits of its result, so Off where another plan's bits are to be met.
enum class CoreLending { Off, On };

// Makes the optimizer of one stage, for these parameters of it.
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    int stage, const NamedTensors& parameters)>;

struct PipelineOptions {
  // The ranks that the pipeline is laid over, in the order of the table's: each makes and runs its
  // own stages only. Not valid (the default): one process runs all. See below, "Over ranks".
  // Pipelines on one group run one after the other; for two at once give each a group of its own.
  comm::Group group = {};
  // The ranks that have the same stages as this one and take other parts of the same mini-batch: data parallelism, one
  // pipeline a replica. step() then gives the loss and the gradients of all parts together. The gradients are reduced
  // through `hooks`; train/parallelize.h sets both up. Not valid: there is one pipeline.
  comm::Group replicas = {};
  std::shared_ptr<pipeline::StageHooks> hooks = {};
  // One for each stage (a device may stand several times), or a single one for all; empty = cpu.
  // Over ranks: of this rank's own stages.
  std::vector<Device> devices = {};
  // Layers of each stage; empty = measured with `sample`, one stage a device. Over ranks one stage a
  // rank, measured when the pipeline is made, with the sample of the first stage's rank.
  std::vector<int> balance = {};
  // Pieces of a mini-batch; a smaller batch makes fewer pieces, never empty ones.
  int micro_batches = 1;
  // Or samples of a piece, the last one smaller where they do not go up, as torch's x.split(); 0 = by
  // `micro_batches`. Giving both is a mistake.
  int split_size = 0;
  // A name that schedule::generate() knows.
  std::string schedule = "gpipe";
  // Or your own compute-only table, used as it is; a batch that makes fewer micro-batches than it
  // has runs GPipe on the table's ranks.
  std::optional<schedule::Schedule> table = {};
  BackwardOrder backward_order = BackwardOrder::Reverse;  // of "gpipe"
  Recompute recompute = Recompute::Never;
  // Instead of `recompute`, one for each stage.
  std::vector<Recompute> recompute_per_stage = {};
  // What moves the running statistics of batch norms. Except for EachRun, a recomputation leaves
  // them, and all other buffers, as they are.
  nn::BatchNormStatistics batch_norm = nn::BatchNormStatistics::EachMicroBatch;
  // Keys dropout and every other random number (keyed_seed).
  std::uint64_t seed = 0;
  // Of one operator of a stage; 0 = the cores divided by the ranks. Where stages share a virtual
  // device, its backward thread has VirtualDeviceOptions::threads_per_device instead.
  int threads = 0;
  // May a stage use the cores of stages that have nothing to do?
  CoreLending core_lending = CoreLending::Off;
  // The order in memory of images (tensors of four dimensions) and of the weights of 2-d
  // convolutions: ChannelsLast is faster for most nets of convolutions, on CPUs and on GPUs. Values
  // keep it from layer to layer and over every cut. Preserve leaves everything as it is. Random
  // numbers are drawn in the order of memory, so a mask of dropout is another one.
  at::MemoryFormat memory_format = at::MemoryFormat::Preserve;
  // Of the arithmetic in forwards and losses, wherever a stage runs and whenever it runs again; an
  // output is what autocast leaves it as. Float32: as autocast is in the caller's thread.
  Precision precision = Precision::Float32;
  // The longest a stage waits for another.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // An example mini-batch, for a measured balance.
  nn::Values sample = {};
  // Turns NORM and STEP on: called for each stage that is here and has parameters, at the first step() or optimizer(). With
  // train/parallelize.h the parameters are this rank's parts of them. Empty: a step leaves the gradients to the caller.
  OptimizerFactory optimizer = {};
  // With it: what the p-norm of all stages' gradients together is clipped to, as optim::clip_grad_norm() does; 0 = they are not.
  double clip_grad_norm = 0;
  double clip_p = 2;
};

// What one training step did.
struct StepResult {
  // Of the whole mini-batch: the weighted mean of the micro-batches' for an additive loss.
  double loss = 0;
  int micro_batches = 0;  // how many pieces there were, of all replicas together
  double weight = 0;      // what the loss was a mean over: samples, pixels, tokens
  // The model's first output for the mini-batch, detached, on the last device; see StepOptions.
  at::Tensor output = {};
  // With PipelineOptions::optimizer, but for Update::Later: the norm of all gradients together, of all ranks, before they were
  // clipped; and whether the weights changed. Where the norm is infinite or NaN they do not, on any rank.
  std::optional<double> gradient_norm = {};
  bool stepped = false;
};

struct StepOptions {
  enum class Output { Discard, Keep };
  Output output = Output::Discard;  // keeping it costs memory on the last device
  // What every gradient of the step is multiplied by; the loss that it returns is not. Several
  // steps then give the gradient of one larger mini-batch, if each has the share of its weight.
  double gradient_scale = 1;
  // The number of its first micro-batch. Above 0 the step goes on with the one before it: its random
  // numbers are those of a larger mini-batch's later micro-batches.
  std::int64_t first_micro_batch = 0;
  // With PipelineOptions::optimizer: Later leaves the gradients where they are, for the next step to add to.
  enum class Update { Now, Later };
  Update update = Update::Now;
  // With it too: fp16's scale, of this rank; over ranks each has one of the same options. The losses are multiplied by it; the
  // update divides the gradients by it and calls scaler->update(), once for all steps that add up.
  precision::GradientScaler* scaler = nullptr;
};

class Pipeline {
 public:
  // Cuts `model` and moves every stage to its device, in place: the model's modules, parameters and
  // names stay the same objects, and gradients that are there move with them (an optimizer's state:
  // optim::move_state). Throws UsageError for a balance that does not cover the layers, a stage
  // without layers, more stages than layers, an unknown schedule, a table with actions that cannot
  // be run, and for wiring mistakes, all of them at once.
  Pipeline(const nn::Layers& model, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // One training step: forward, loss, backward of all micro-batches in the schedule's order.
  // Gradients are accumulated into the parameters' grad(), as backward() does; autocast reaches
  // forwards and loss, not the backwards. Tensors are split along dimension 0. `target` may be None
  // (at::Tensor()) for a loss of the output alone. Throws UsageError for a whole-batch loss under a
  // schedule that starts a backward before the last forward, and, by name, where a layer writes to a
  // value that another layer takes.
  //
  // Two mini-batches of one size as one of twice that size:
  //
  //   auto first = pipeline.step(x1, y1, loss, {.gradient_scale = 0.5});
  //   pipeline.step(x2, y2, loss,
  //                 {.gradient_scale = 0.5, .first_micro_batch = first.micro_batches});
  //
  // With PipelineOptions::optimizer the first of the two has `.update = StepOptions::Update::Later`.
  StepResult step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options = {});
  StepResult step(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options = {});

  // The other way: forward now, and the caller's own backward drives the pipeline's (GPipe order).
  // The output is on the last device. A second backward through it, or grad() with the pipeline's
  // own inputs, is refused with the reason; grad() with parameters finds them unused.
  at::Tensor forward(const at::Tensor& input);
  nn::Values forward(const nn::Values& inputs);

  // The caller's backward over ranks: on the last rank that of `loss`, which was computed from what
  // forward() returned; elsewhere, where forward() returned None, without a loss: it runs the rank's
  // own part and returns when that is done. Each forward() with gradients has its backward() before
  // the next. In one process the same as loss.backward().
  void backward(const at::Tensor& loss = {});

  // Forwards only: evaluation mode for the time of the call, no graph, no recomputation, no
  // batch-norm updates. A net that draws in evaluation mode draws other numbers at each call, the
  // same again after set_step_number().
  at::Tensor evaluate(const at::Tensor& input);
  nn::Values evaluate(const nn::Values& inputs);

  // Parameters and buffers under their unsplit names; over ranks the rank's own, once the model is
  // cut.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  std::vector<at::Tensor> stage_parameters(int stage) const;
  void zero_grad();
  // Of PipelineOptions::optimizer: a stage's, for its learning rate or its state; null where the stage has no parameters.
  // Throws StateError where there is no such option, and of a stage that is elsewhere.
  torch::optim::Optimizer* optimizer(int stage);
  // Scales the gradients of all stages together, before an optimizer's step: clip_grad_norm.h.
  // Returns their norm from before.
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options = {});
  // That norm alone.
  double grad_norm(double p = 2) const;
  // Over ranks all of them call these.
  void train();
  void eval();

  // The number that keys the next step's randomness; step() and forward() in training mode add one.
  // Set it to resume.
  std::int64_t step_number() const;
  void set_step_number(std::int64_t step);

  int stage_count() const;
  // Whether a stage is here: over ranks a rank has its own alone.
  bool has_stage(int stage) const;
  // Whether idle cores are lent: core_lending is On, and each stage is on a virtual device of its
  // rank's own. Throws StateError before the model is cut.
  bool lends_cores() const;
  const std::vector<int>& balance() const;
  const Device& device(int stage) const;
  // Its layers are on their stages' devices and stay there: step(), forward(), evaluate() and
  // profile() throw StateError, with the layer, where one was moved. They may be cast.
  nn::Layers& model();
  const PipelineOptions& options() const;

  // The lowered table for so many micro-batches, as step() runs it. Default: options().micro_batches;
  // with split_size as many as the profiled mini-batch has, and a UsageError before one was profiled.
  schedule::Schedule schedule(int micro_batches = 0) const;

  // What the last step, forward + backward, or evaluation did, and when. Memory is the most that a
  // stage's device held during each action.
  // Over ranks: what this rank did.
  schedule::Timeline timeline() const;
  // Over ranks: what all did, with their clocks aligned. All ranks call it.
  schedule::Timeline gather_timeline() const;

  // Over ranks: bytes of tensors that this rank has sent to others since the pipeline was made.
  Bytes bytes_sent() const;

  // Measures each stage with one micro-batch of `inputs` (a mini-batch, split as step() would):
  // times, bytes, transfers. Leaves parameters, gradients, buffers and random keys as they were.
  // The budgets of virtual devices do not count meanwhile, so a plan that does not fit is measured
  // too. The costs are remembered, and an out-of-memory error then says what would have fitted.
  //
  // Over ranks all call it, with what they give a step, and all get the costs of all stages. Memory and
  // transfers are measured one after the other, and then all ranks measure times at once: ranks that
  // share a machine's cores, or its network, do so as in a step. predict() is then the same everywhere,
  // and takes each rank to go on by itself.
  simulate::Costs profile(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss);

  // Costs to remember instead, for example with the optimizer's state added to `persistent`.
  void remember_costs(simulate::Costs costs);

  // One sentence on what would make a step fit the devices' budgets, by the remembered costs. An
  // out-of-memory error says the same. Over ranks the others' budgets are those of the profile.
  std::string suggest_fit() const;

  // What the simulator expects of one step with these costs, in so many micro-batches (default: as
  // many as the profiled mini-batch is cut into). Peaks are the most there can be: see
  // simulate/memory.h.
  schedule::Timeline predict(const simulate::Costs& costs, int micro_batches = 0) const;

 private:
  class Impl;
  friend class NonfiniteSearch;  // find_nonfinite.cpp
  void check_stage(int stage) const;
  std::shared_ptr<Impl> impl_;
};

}  // namespace trestle
