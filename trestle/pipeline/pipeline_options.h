#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/comm/message_log.h"
#include "trestle/device/device.h"
#include "trestle/nn/batch_norm_statistics.h"
#include "trestle/nn/value.h"
#include "trestle/pipeline/execute/stage_hooks.h"
#include "trestle/pipeline/execute/stage_optimizer_options.h"
#include "trestle/precision/autocast.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/schedule.h"

// How a model is cut and run. Six fields matter most; the rest is grouped by topic.
//
//   trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2), .balance = {13, 9},
//                                    .micro_batches = 4, .schedule = "1f1b",
//                                    .numerics = {.seed = 7}, .cores = {.threads = 2}});
namespace trestle {

using schedule::BackwardOrder;
using schedule::Recompute;

// PipelineOptions::plan: finer control than balance, micro_batches, schedule and recompute give.
struct PlanOptions {
  // Samples of a micro-batch, instead of micro_batches. The last micro-batch is smaller if the
  // mini-batch is not a multiple, as with torch's x.split(). 0 = use micro_batches. Setting both is
  // an error.
  int split_size = 0;
  // A table of compute actions, instead of a schedule's name. A mini-batch that has fewer
  // micro-batches than the table runs GPipe on the table's ranks.
  std::optional<schedule::Schedule> table = {};
  // The order of the backwards of "gpipe".
  BackwardOrder backward_order = BackwardOrder::Reverse;
  // One mode for each stage, instead of one for all.
  std::vector<Recompute> recompute_per_stage = {};
  // An example mini-batch. With an empty balance, the layers are timed with it when the pipeline is
  // made, and not at the first step.
  nn::Values sample = {};
};

// PipelineOptions::numerics: what may change the results.
struct NumericsOptions {
  // Keys dropout and all other random numbers (keyed_seed).
  std::uint64_t seed = 0;
  // The dtype of autocast in forwards, recomputed forwards and losses. An output keeps the dtype
  // that autocast gives it. Float32: the setting of the caller's thread holds.
  Precision precision = Precision::Float32;
  // When batch norms update their running statistics. Except with EachRun, a recomputed forward
  // changes no buffer.
  nn::BatchNormStatistics batch_norm = nn::BatchNormStatistics::EachMicroBatch;
  // The memory format of images (4-dimensional tensors) and of the weights of 2-d convolutions.
  // Values keep it from layer to layer and across cuts. ChannelsLast is faster for most convolution
  // nets, on CPUs and GPUs. Preserve changes nothing. Random numbers are drawn in memory order, so
  // dropout masks differ between formats.
  at::MemoryFormat memory_format = at::MemoryFormat::Preserve;
};

// Whether a stage may use the cores of idle stages (schedule/lend_cores.h). The number of threads
// of an operator may change the last bits of its result: Off reproduces another plan's bits.
enum class CoreLending { Off, On };

// PipelineOptions::cores: the CPU cores of a stage.
struct CoreOptions {
  // Intra-op threads of a stage. 0 = those of the thread that makes the pipeline, and at most the
  // cores, divided by the ranks. For stages that share a virtual device,
  // VirtualDeviceOptions::threads_per_device counts instead.
  int threads = 0;
  CoreLending lending = CoreLending::Off;
};

// PipelineOptions::replicas: data parallelism over several pipelines, each with its share of the
// mini-batch. step() then returns the loss of all shares, and the gradients are those of all
// shares. parallel/parallelize.h sets both fields.
struct ReplicaOptions {
  // The ranks that hold the same stages as this one. Not valid: there is one pipeline.
  comm::Group group = {};
  // Reduces the gradients over the group.
  std::shared_ptr<pipeline::StageHooks> hooks = {};
};

// PipelineOptions::tensor: layers that several ranks split (tensor_parallel/tensor_ranks.h). Each
// of these ranks has a pipeline of its own, with the same stages, and passes it the same batches.
// parallel/parallelize.h sets it.
struct TensorOptions {
  // The ranks that split the layers of this rank's stages. Not valid: no layer is split.
  comm::Group group = {};
  // Makes an object. As long as it lives, the layers of this rank send nothing, so that it can
  // measure them alone. They then compute other numbers.
  std::function<std::shared_ptr<void>()> alone = {};
  // The ranks' messages while the stages run, for timelines and costs. Null: unknown.
  std::shared_ptr<MessageLog> log = {};
};

struct PipelineOptions {
  // The ranks of the pipeline, in the order of the table's ranks. Each makes and runs its own
  // stages only (pipeline.h, "Over ranks"). Not valid (the default): this process runs all stages.
  // Calls of two pipelines on one group must not overlap: give each a group of its own for that.
  comm::Group group = {};
  // One for each stage (a device may be listed several times), one for each rank of a schedule with
  // several stages on a rank, or one for all; empty = cpu. Over ranks: those of this rank's stages,
  // or one for all of them.
  std::vector<Device> devices = {};
  // The number of layers of each stage. Empty = chosen by measured times: stages_per_rank stages a
  // device, or over ranks a rank. The layers are timed with plan.sample, or with the first
  // mini-batch; over ranks on the rank of the first stage, when the pipeline is made.
  std::vector<int> balance = {};
  // How many micro-batches a mini-batch is split into. A mini-batch of fewer samples has one
  // micro-batch a sample.
  int micro_batches = 1;
  // A name of schedule::known_schedules(). Other tables: plan.table. A mini-batch whose number of
  // micro-batches is not micro_batches, and which the schedule does not take, runs GPipe on the
  // same ranks.
  std::string schedule = "gpipe";
  // The number of stages of each rank; in one process, one thread runs their actions. 0 = the
  // number that the schedule needs, or 2 if it takes any ("interleaved_1f1b").
  int stages_per_rank = 0;
  // Which micro-batches' forwards run again before their backward, to save memory. Such a forward
  // runs without gradients at first: a layer must compute the same with and without them.
  Recompute recompute = Recompute::Never;
  // Activation checkpointing inside stages: each stage's layers are cut into this many segments of
  // equal size, or nearly so. A segment is recomputed in its own backward and keeps only its inputs
  // until then, so that a stage holds the activations of one segment at a time. The square root of
  // a stage's layers needs least memory (Chen et al. 2016, arXiv:1604.06174). 0 = none. A stage of
  // fewer layers has one segment a layer. Loss and gradients stay the same.
  int checkpoint_segments = 0;
  // Called once, before the model is cut: may replace the layers' forwards, for instance to
  // checkpoint single layers (parallel/checkpoint_layers.h).
  std::function<void(nn::Graph&)> wrap_layers = {};

  PlanOptions plan = {};
  NumericsOptions numerics = {};
  CoreOptions cores = {};
  ReplicaOptions replicas = {};
  TensorOptions tensor = {};
  StageOptimizerOptions optimizer = {};
  // The longest that a stage waits for another one; then the call throws DeadlineError.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
};

}  // namespace trestle
