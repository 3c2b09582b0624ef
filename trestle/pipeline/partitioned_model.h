#pragma once

#include <mutex>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/nn/graph.h"
#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/executor.h"
#include "trestle/pipeline/stage.h"

namespace trestle::pipeline {

// Moves all layers to one device, in place: parameters stay the same tensors, gradients that are
// there move with them.
void move_layers(const nn::Graph& graph, at::Device device);

// A model that has been cut and moved to its devices, with the workers that run it. Shared by the
// pipeline and by the autograd nodes of a caller's backward, which may outlive it.
class PartitionedModel {
 public:
  // One rank for each stage unless `rank_of_stage` says otherwise. Moves every layer to its stage's
  // device, in place.
  PartitionedModel(nn::Graph model, const std::vector<int>& balance,
                   const std::vector<Device>& devices, const std::vector<int>& rank_of_stage,
                   int threads);

  const nn::Graph graph;
  const Cut cut;
  const std::vector<Stage> stages;
  Executor executor;

  at::Device last_device() const { return stages.back().device(); }

  void set_timeline(schedule::Timeline timeline);
  schedule::Timeline timeline() const;

  nn::Boundary loss_boundary{"the loss", {"the model's output", "the target"}};

 private:
  schedule::Timeline timeline_;
  mutable std::mutex timeline_mutex_;
};

}  // namespace trestle::pipeline
