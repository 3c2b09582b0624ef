#include "trestle/recompute/value_sample.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "trestle/base/text.h"
#include "trestle/device/host_memory.h"

namespace trestle::recompute {
namespace {

template <class Number>
double read(const void* data, std::int64_t place) {
  return static_cast<double>(static_cast<const Number*>(data)[place]);
}

using Read = double (*)(const void* data, std::int64_t place);

// Null for dtypes that are not compared: bytes are the workspaces of some kernels, with gaps.
Read reader_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return read<double>;
    case at::kFloat:
      return read<float>;
    case at::kHalf:
      return read<at::Half>;
    case at::kBFloat16:
      return read<at::BFloat16>;
    case at::kLong:
      return read<std::int64_t>;
    case at::kInt:
      return read<std::int32_t>;
    case at::kBool:
      return read<bool>;
    default:
      return nullptr;
  }
}

double tolerance_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-7;
    case at::kFloat:
      return 1e-3;
    case at::kHalf:
    case at::kBFloat16:
      return 0.1;
    default:
      return 0;
  }
}

// The place in memory of the element with this number.
std::int64_t place_of(const at::Tensor& tensor, std::int64_t number) {
  std::int64_t place = 0;
  for (std::int64_t d = tensor.dim() - 1; d >= 0; --d) {
    place += number % tensor.size(d) * tensor.stride(d);
    number /= tensor.size(d);
  }
  return place;
}

bool equal(double a, double b, double margin) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= margin;
}

}  // namespace

ValueSample::ValueSample(const at::Tensor& tensor) {
  const Read read_number = reader_of(tensor.scalar_type());
  const bool readable = tensor.layout() == at::kStrided && tensor.has_storage() &&
                        (tensor.is_cpu() || tensor.is_privateuseone());
  if (read_number == nullptr || !readable || tensor.numel() == 0) return;
  const at::Tensor host = tensor.is_cpu() ? tensor : host_view(tensor.detach());
  const void* const data = host.const_data_ptr();
  count_ = static_cast<int>(std::min<std::int64_t>(most, tensor.numel()));
  tolerance_ = tolerance_of(tensor.scalar_type());
  for (int i = 0; i < count_; ++i)
    values_[static_cast<std::size_t>(i)] =
        read_number(data, place_of(host, i * tensor.numel() / count_));
}

std::optional<std::string> ValueSample::difference(const ValueSample& other) const {
  if (count_ == 0 || other.count_ != count_) return {};
  double largest = 0;
  for (const double value : values_)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  int different = 0;
  std::string words;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count_); ++i) {
    if (equal(values_[i], other.values_[i], tolerance_ * largest)) continue;
    ++different;
    words = text(other.values_[i], " where it was ", values_[i]);
  }
  // Rounding may change one index or one sign among many.
  if (different <= (count_ == most ? 1 : 0)) return {};
  return words;
}

}  // namespace trestle::recompute
