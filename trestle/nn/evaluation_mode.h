#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trestle/nn/graph.h"

namespace trestle::nn {

// All modules of a model in evaluation mode while it lives, and afterwards each as it was.
class EvaluationMode {
 public:
  explicit EvaluationMode(const nn::Graph& graph);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

}  // namespace trestle::nn
