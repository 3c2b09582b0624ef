#pragma once

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/device/stream.h"
#include "trestle/nn/graph.h"
#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/executor.h"
#include "trestle/pipeline/stage_list.h"

namespace trestle::pipeline {

// A model that has been cut and moved to its devices, with the workers that run it. Shared by the
// pipeline and by the autograd nodes of a caller's backward, which may outlive it.
class PartitionedModel {
 public:
  // Moves every layer to its stage's device and into the memory format, in place. With `own_rank`
  // the other ranks' stages are elsewhere, their layers are neither made nor moved, and `devices` are
  // those of the own stages.
  PartitionedModel(nn::Graph model, const std::vector<int>& balance,
                   const std::vector<Device>& devices, const std::vector<int>& rank_of_stage,
                   int threads, at::MemoryFormat format, std::optional<int> own_rank = {});

  const nn::Graph graph;
  const Cut cut;
  const StageList stages;
  Executor executor;
  // Has each rank a virtual device of its own? What two ranks share has one number of threads.
  const bool one_device_each;
  const bool can_lend_cores;  // and are they all here?

  at::Device last_device() const { return stages.last().device(); }  // where it is here
  // Of the stages that are here, in order.
  std::vector<nn::Layer> layers() const;
  // Of these layers, under their unsplit names.
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;

  // What the last step did; timeline() waits for devices that are still at it.
  void remember(const MiniBatchState& step);
  schedule::Timeline timeline() const;
  // And when it began, on the clock below.
  std::pair<schedule::Timeline, double> timeline_and_begin() const;

  device::CopyStreams copies;
  device::Clock clock;
  nn::Boundary loss_boundary{"the loss", {"the model's output", "the target"}};

 private:
  StepRecord record_;
  schedule::Schedule table_;  // of the record
  mutable std::mutex record_mutex_;
};

}  // namespace trestle::pipeline
