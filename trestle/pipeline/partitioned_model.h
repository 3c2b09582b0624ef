#pragma once

#include <mutex>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/device/stream.h"
#include "trestle/nn/graph.h"
#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/executor.h"
#include "trestle/pipeline/stage.h"

namespace trestle::pipeline {

// A model that has been cut and moved to its devices, with the workers that run it. Shared by the
// pipeline and by the autograd nodes of a caller's backward, which may outlive it.
class PartitionedModel {
 public:
  // Moves every layer to its stage's device and into the memory format, in place.
  PartitionedModel(nn::Graph model, const std::vector<int>& balance,
                   const std::vector<Device>& devices, const std::vector<int>& rank_of_stage,
                   int threads, at::MemoryFormat format);

  const nn::Graph graph;
  const Cut cut;
  const std::vector<Stage> stages;
  Executor executor;
  // Has each rank a virtual device of its own? What two ranks share has one number of threads.
  const bool can_lend_cores;

  at::Device last_device() const { return stages.back().device(); }

  // What the last step did; timeline() waits for devices that are still at it.
  void remember(const StepState& step);
  schedule::Timeline timeline() const;

  device::CopyStreams copies;
  device::Clock clock;
  nn::Boundary loss_boundary{"the loss", {"the model's output", "the target"}};

 private:
  StepRecord record_;
  schedule::Schedule table_;  // of the record
  mutable std::mutex record_mutex_;
};

}  // namespace trestle::pipeline
