#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>

namespace trestle::recompute {

// A few numbers of a tensor, at fixed places. They find a recomputation that computes something
// else, at the cost of about a microsecond for each saved tensor. Empty for tensors on a GPU, where
// reading would stall the stream, and for those that are not strided.
class ValueSample {
 public:
  ValueSample() = default;
  explicit ValueSample(const at::Tensor& tensor);

  // Whether the other tensor, of the same shape and dtype, has other numbers than rounding explains
  // (another number of threads adds up in another order): in words, "0.31 where it was 0".
  std::optional<std::string> difference(const ValueSample& other) const;

 private:
  static constexpr int most = 16;

  std::array<double, most> values_ = {};
  int count_ = 0;
  double tolerance_ = 0;  // of the largest value
};

}  // namespace trestle::recompute
