#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "trestle/tensor_parallel/tensor_ranks.h"

// Keeps tensor ranks in a node of autograd's graph. Inside of tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

struct HeldRanks : torch::CustomClassHolder {
  explicit HeldRanks(TensorRanks given) : ranks(std::move(given)) {}
  TensorRanks ranks;
};

inline void hold(torch::autograd::AutogradContext* context, const TensorRanks& ranks) {
  context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<HeldRanks>(ranks));
}

inline TensorRanks held(torch::autograd::AutogradContext* context) {
  const auto capsule = context->saved_data["ranks"].toCapsule();
  return static_cast<const HeldRanks&>(*capsule).ranks;
}

}  // namespace trestle::tensor_parallel
