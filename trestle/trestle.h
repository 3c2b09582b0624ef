#pragma once

// Everything that a user's program needs, in one include. It also includes torch's modules and
// optimizers.
//
//   #include <trestle/trestle.h>
//   using namespace trestle::literals;
//
//   trestle::nn::Layers net;
//   net.add("in", torch::nn::Linear(8, 16));
//   net.add("out", torch::nn::Linear(16, 1));
//   trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2, 512_MiB)});
//
// A library should include the headers that it uses instead: each compiles alone, and faster. An
// installation has these headers and those that they include.
//
// Namespace trestle has the names that most programs use: Pipeline, Device, virtual_devices, run,
// the errors. The rest is in the namespace of its folder: trestle::nn, trestle::data,
// trestle::train.

#include <torch/autograd.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/units.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/safetensors.h"
#include "trestle/checkpoint/save.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/group.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/comm/work.h"
#include "trestle/comm/world.h"
#include "trestle/data/arrays.h"
#include "trestle/data/augment.h"
#include "trestle/data/classification.h"
#include "trestle/data/dataset.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"
#include "trestle/data/loader.h"
#include "trestle/data/mnist.h"
#include "trestle/data/own_data.h"
#include "trestle/data/picture.h"
#include "trestle/data/random_tensors.h"
#include "trestle/data/sampler.h"
#include "trestle/data/segmentation.h"
#include "trestle/data/split.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/data/tensor_dataset.h"
#include "trestle/data_parallel/data_parallel.h"
#include "trestle/deepspeed/config/config.h"
#include "trestle/deepspeed/config/rate.h"
#include "trestle/deepspeed/deepspeed.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/device/determinism.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_check.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/models/model.h"
#include "trestle/models/resnet.h"
#include "trestle/models/resnet50.h"
#include "trestle/models/toy.h"
#include "trestle/models/unet.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/fused.h"
#include "trestle/optim/learning_rate.h"
#include "trestle/optim/reduce_on_plateau.h"
#include "trestle/optim/state.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/parallel/shard_timeline.h"
#include "trestle/pipeline/find_nonfinite.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/precision/autocast.h"
#include "trestle/precision/cpu_support.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/recipe/recipe.h"
#include "trestle/recompute/checkpoint.h"
#include "trestle/recompute/checkpointed.h"
#include "trestle/recompute/install.h"
#include "trestle/recompute/recomputing.h"
#include "trestle/run.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"
#include "trestle/sharding/ddp.h"
#include "trestle/sharding/fsdp.h"
#include "trestle/sharding/hooks/communication_hook.h"
#include "trestle/sharding/hooks/hooked.h"
#include "trestle/sharding/hsdp.h"
#include "trestle/sharding/join.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/shard_level.h"
#include "trestle/sharding/record/shard_record.h"
#include "trestle/sharding/save/background_save.h"
#include "trestle/sharding/save/save.h"
#include "trestle/sharding/sharded.h"
#include "trestle/sharding/unscale.h"
#include "trestle/sharding/zero1.h"
#include "trestle/sharding/zero2.h"
#include "trestle/simulate/simulate.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"
#include "trestle/train/predict/evaluator.h"
#include "trestle/train/predict/export.h"
#include "trestle/train/predict/predictor.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/trainer.h"
#include "trestle/view/chrome_trace.h"
#include "trestle/view/curve.h"
#include "trestle/view/cut_picture.h"
#include "trestle/view/svg.h"
#include "trestle/view/text_grid.h"
