#include "trestle/models/transformer/product.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>

namespace trestle::models {

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = weight.scalar_type();
  if (type == x.scalar_type() || at::autocast::is_autocast_enabled(x.device().type()))
    return at::linear(x, weight, bias);
  return at::linear(x.to(type), weight, bias).to(x.scalar_type());
}

}  // namespace trestle::models
