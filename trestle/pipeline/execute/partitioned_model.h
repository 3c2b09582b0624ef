#pragma once

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/device/stream.h"
#include "trestle/nn/graph.h"
#include "trestle/pipeline/execute/cut.h"
#include "trestle/pipeline/execute/executor.h"
#include "trestle/pipeline/execute/stage_list.h"
#include "trestle/pipeline/execute/tied_copies.h"

namespace trestle::pipeline {

// A model that has been cut and moved to its devices, with the executor that runs it. Shared by the
// pipeline and by the autograd nodes of a caller's backward, which may outlive the pipeline.
class PartitionedModel {
 public:
  // Moves every layer to its stage's device and into the memory format, in place. With `own_rank`
  // only that rank's layers are made and moved, and `devices` are those of its stages.
  // `checkpoint_segments`: of each stage.
  PartitionedModel(nn::Graph model, const std::vector<int>& balance,
                   const std::vector<Device>& devices, const std::vector<int>& rank_of_stage,
                   int threads, at::MemoryFormat format, int checkpoint_segments = 0,
                   std::optional<int> own_rank = {}, Replicated replicated = Replicated::No);

  const nn::Graph graph;
  const Cut cut;
  TiedCopies ties;
  const StageList stages;
  Executor executor;
  // Whether each rank has a virtual device of its own: a shared one has one number of threads.
  const bool one_device_each;
  const bool can_lend_cores;  // the same, and all ranks are in this process

  at::Device last_device() const { return stages.last().device(); }  // of the last stage's rank
  // The layers of this process's stages, in order.
  std::vector<nn::Layer> layers() const;
  // Their parameters and buffers, under the names of the unsplit model.
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  nn::ParameterSlices parameter_slices() const;

  // Keeps the record of the last step. timeline() waits for devices that have not finished.
  void remember(const MiniBatchState& step);
  schedule::Timeline timeline() const;
  // Also when the step began, on `clock`.
  std::pair<schedule::Timeline, double> timeline_and_begin() const;

  device::CopyStreams copies;
  device::Clock clock;
  nn::Boundary loss_boundary{"the loss", {"the model's output", "the target"}};

 private:
  StepRecord record_;
  schedule::Schedule table_;  // of record_
  mutable std::mutex record_mutex_;
};

}  // namespace trestle::pipeline
