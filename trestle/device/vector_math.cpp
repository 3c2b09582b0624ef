#include "trestle/device/vector_math.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace trestle {

void warm_up_vector_math() {
  static const bool settled = [] {
    const at::NoGradGuard no_grad;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({64}, 0.5, type);
      for (const auto function :
           {at::tanh, at::exp, at::log, at::erf, at::erfc, at::erfinv, at::sin, at::cos, at::tan,
            at::asin, at::acos, at::atan, at::log10, at::log1p, at::expm1, at::lgamma, at::sqrt})
        function(x);
    }
    return true;
  }();
  static_cast<void>(settled);
}

}  // namespace trestle
