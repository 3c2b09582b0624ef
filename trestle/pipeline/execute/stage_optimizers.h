#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/gradient_norm/slice_norm.h"
#include "trestle/gradient_norm/stage_norms.h"
#include "trestle/pipeline/execute/stage_hooks.h"
#include "trestle/pipeline/execute/stage_list.h"
#include "trestle/pipeline/execute/stage_optimizer_options.h"

namespace trestle::pipeline {

// How a step updates the weights; the same on all ranks.
struct StepEnd {
  double max_norm = 0;  // 0: gradients are not clipped
  double p = 2;
  double loss_scale = 1;        // the gradients are divided by it
  bool keep_nonfinite = false;  // StepOptions::NonfiniteGradients::Keep
};

// The optimizers of the stages of this process, and what NORM and STEP do with them. Ranks that are
// threads of one process call it for different stages at the same time.
class StageOptimizers {
 public:
  // One for each stage that has parameters to train. Throws UsageError where the factory returns
  // none for such a stage. `named`: the parameters of all these stages.
  StageOptimizers(const StageList& stages, const NamedTensors& named, const OptimizerFactory& make,
                  std::shared_ptr<StageHooks> hooks, gradient_norm::SlicedParameters sliced = {});

  // Null where the stage has nothing to train.
  torch::optim::Optimizer* find(int stage) const;

  // NORM of a rank's stages.
  std::vector<gradient_norm::StageNorm> norms(const std::vector<int>& stages,
                                              const StepEnd& end) const;
  // STEP: `all` are the norms of all ranks. Steps the optimizer and clears the gradients. If the
  // norm is not finite, it does not step, and keeps the gradients with end.keep_nonfinite.
  void step(int stage, const std::vector<optim::GradientNorm>& all, const StepEnd& end) const;
  // Clears the gradients of all stages: the model's, and those of this rank's shards.
  void clear_gradients() const;

 private:
  struct Own {
    std::vector<at::Tensor> model;    // the stage's parameters
    NamedTensors named;               // its optimizer's: the same, or this rank's shards
    std::vector<at::Tensor> stepped;  // without their names
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };

  std::map<int, Own> own_;
  std::shared_ptr<StageHooks> hooks_;
  gradient_norm::SlicedParameters sliced_;
};

// A stage's own parameters among the named ones of several stages.
NamedTensors named_parameters(const Stage& stage, const NamedTensors& all);

// The norms of these gradients: of each, or one for all if tensor ranks hold slices of them. Then
// all tensor ranks call it.
std::vector<optim::GradientNorm> norms_of(const NamedTensors& parameters,
                                          const gradient_norm::SlicedParameters& sliced, double p);

// The norm of all gradients, divided by the scale; 0 without gradients.
double norm_of_step(const std::vector<optim::GradientNorm>& all, const StepEnd& end);

}  // namespace trestle::pipeline
