#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/nn/detail/autocast_scope.h"

// Mixed precision as in torch.autocast. Weights stay in fp32. Matrix products and convolutions
// compute on casts of their inputs; sums, norms and losses stay in fp32.
//
//   Pipeline pipeline(net, {.balance = {13, 9}, .numerics = {.precision = Precision::BFloat16}});
//
//   {                                                     // without a pipeline
//     const precision::Autocast autocast(Precision::BFloat16);
//     loss = torch::cross_entropy_loss(net.forward(x), y);
//   }
// loss.backward();                                      // outside of the scope, as torch
// recommends
//
// fp16 has a range of 6e-8 to 65504, so its gradients need a scale (gradient_scaler.h).
namespace trestle {

enum class Precision { Float32, BFloat16, Float16 };

namespace precision {

// "fp32", "bf16", "fp16". Throws UsageError for any other name, with the nearest one.
Precision parse_precision(std::string_view name);
std::vector<std::string> precision_names();

// During its lifetime the calling thread computes in that precision, on all devices. Float32
// changes nothing, and keeps an enabled autocast enabled. Casts of weights are freed with it.
class Autocast {
 public:
  explicit Autocast(Precision precision);

 private:
  std::optional<nn::AutocastScope> scope_;
};

}  // namespace precision
}  // namespace trestle
