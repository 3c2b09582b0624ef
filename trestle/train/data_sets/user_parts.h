#pragma once

#include <functional>
#include <map>
#include <string>

#include "trestle/data/own_data.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"

namespace trestle::train {

// The data sets, losses and metrics that a program adds to the names that recipes can use. Models:
// models::OwnModels.
struct UserParts {
  std::map<std::string, data::OpenOwnData> data_sets = {};
  std::map<std::string, std::function<nn::Loss()>> losses = {};
  // A larger value of a metric is better.
  std::map<std::string,
           std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)>>
      metrics = {};
};

}  // namespace trestle::train
