#pragma once

#include <functional>
#include <map>
#include <string>

#include "trestle/data/own_data.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"

namespace trestle::train {

// What a program adds, beside models, to the names that recipes can use.
struct Additions {
  std::map<std::string, data::OpenOwnData> data_sets = {};
  std::map<std::string, std::function<nn::Loss()>> losses = {};
  // Of each a larger value is better.
  std::map<std::string,
           std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)>>
      metrics = {};
};

}  // namespace trestle::train
