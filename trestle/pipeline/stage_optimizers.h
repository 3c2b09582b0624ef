#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/pipeline/norm_parts.h"
#include "trestle/pipeline/optimizer_factory.h"
#include "trestle/pipeline/stage_hooks.h"
#include "trestle/pipeline/stage_list.h"

namespace trestle::pipeline {

// How a step ends that changes the weights; the same on all ranks.
struct StepEnd {
  double max_norm = 0;  // 0: gradients are not clipped
  double p = 2;
  double loss_scale = 1;  // what gradients are to be divided by
};

// The optimizers of the stages that are here, and what NORM and STEP do with them. Ranks that are threads of one process
// call it for different stages at once.
class StageOptimizers {
 public:
  // One for each stage that has parameters. Throws UsageError where the factory gives none.
  // `named`: of all these stages.
  StageOptimizers(const StageList& stages, const NamedTensors& named, const OptimizerFactory& make,
                  std::shared_ptr<StageHooks> hooks);

  // Null where the stage has no parameters.
  torch::optim::Optimizer* find(int stage) const;

  // NORM, for a rank's stages.
  std::vector<NormPart> norms(const std::vector<int>& stages, const StepEnd& end) const;
  // STEP: `all` are the norms of all ranks. Returns without a step where the norm of them is not finite. Lets the gradients
  // go either way.
  void step(int stage, const std::vector<optim::GradientNorm>& all, const StepEnd& end) const;

 private:
  struct Own {
    std::vector<at::Tensor> model;    // the stage's parameters
    std::vector<at::Tensor> stepped;  // what its optimizer has: the same, or this rank's shards
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };

  std::map<int, Own> own_;
  std::shared_ptr<StageHooks> hooks_;
};

// Of all gradients, of such norms, when they have been divided by the scale; 0 where there are none.
double norm_of_step(const std::vector<optim::GradientNorm>& all, const StepEnd& end);

}  // namespace trestle::pipeline
