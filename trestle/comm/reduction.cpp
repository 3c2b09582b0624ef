#include "trestle/comm/reduction.h"

#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

namespace trestle::comm {

void reduce_to(at::Tensor out, const at::Tensor& a, const at::Tensor& b, Reduce op) {
  switch (op) {
    case Reduce::Sum:
      at::add_out(out, a, b);
      return;
    case Reduce::Product:
      at::mul_out(out, a, b);
      return;
    case Reduce::Min:
      at::minimum_out(out, a, b);
      return;
    case Reduce::Max:
      at::maximum_out(out, a, b);
      return;
  }
}

void reduce_into(const at::Tensor& sum, const at::Tensor& more, Reduce op) {
  reduce_to(sum, sum, more, op);
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto* const begin_a = static_cast<const char*>(a.const_data_ptr());
  const auto* const begin_b = static_cast<const char*>(b.const_data_ptr());
  return begin_a < begin_b + b.nbytes() && begin_b < begin_a + a.nbytes();
}

}  // namespace trestle::comm
