#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/nn/autocast_scope.h"

// Mixed precision as torch.autocast does it: weights stay in fp32, and the operators that can (matrix
// products, convolutions) work on casts of what they are given; sums, norms and losses stay in fp32.
//
//   Pipeline pipeline(net, {.balance = {13, 9}, .numerics = {.precision = Precision::BFloat16}});
//
//   {                                                     // without a pipeline
//     const precision::Autocast autocast(Precision::BFloat16);
//     loss = torch::cross_entropy_loss(net.forward(x), y);
//   }
//   loss.backward();                                      // outside, as torch advises
//
// fp16 has the range of 6e-8 to 65504: its gradients need a scale (gradient_scaler.h).
namespace trestle {

enum class Precision { Float32, BFloat16, Float16 };

namespace precision {

// "fp32", "bf16", "fp16". Throws UsageError, with the nearest one.
Precision parse_precision(std::string_view name);
std::vector<std::string> precision_names();

// While it lives, the calling thread computes in that precision, on all devices; Float32 leaves
// everything as it is, an autocast that is on included. Casts of weights do not outlive it.
class Autocast {
 public:
  explicit Autocast(Precision precision);

 private:
  std::optional<nn::AutocastScope> scope_;
};

}  // namespace precision
}  // namespace trestle
