#include "trestle/data/sliding_window.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

struct BlendName {
  std::string name;
  Blend blend;
};

const std::vector<BlendName>& blends() {
  static const std::vector<BlendName> all = {
      {"gaussian", Blend::Gaussian}, {"linear", Blend::Linear}, {"constant", Blend::Constant}};
  return all;
}

// A Gaussian's tail is cut here, so that a voxel that one window alone covers keeps its digits.
constexpr double smallest_weight = 1e-3;

double weight_along(std::int64_t index, std::int64_t side, Blend blend) {
  const double middle = static_cast<double>(side - 1) / 2;
  const double distance = static_cast<double>(index) - middle;
  if (blend == Blend::Constant) return 1;
  if (blend == Blend::Linear) return 1 - std::abs(distance) / (middle + 1);
  const double deviation = static_cast<double>(side) / 8;
  return std::exp(-distance * distance / (2 * deviation * deviation));
}

at::Tensor cut(const at::Tensor& volume, const Sides& start, const Sides& window) {
  at::Tensor part = volume;
  for (std::size_t d = 0; d < 3; ++d)
    part = part.narrow(part.dim() - 3 + static_cast<std::int64_t>(d), start[d], window[d]);
  return part;
}

// Sides before and behind the volume that make it as large as the window.
std::vector<std::int64_t> missing_sides(const Sides& sides, const Sides& window) {
  std::vector<std::int64_t> padding;  // of the last dimension first
  for (std::size_t d = 3; d-- > 0;) {
    const std::int64_t missing = std::max<std::int64_t>(window[d] - sides[d], 0);
    padding.push_back(missing / 2);
    padding.push_back(missing - missing / 2);
  }
  return padding;
}

void check_scores(const at::Tensor& scores, const at::Tensor& windows) {
  const bool fits = scores.dim() == 5 && scores.size(0) == windows.size(0) &&
                    scores.sizes().slice(2) == windows.sizes().slice(2);
  if (fits) return;
  throw UsageError(text("the model gives ", scores.sizes(), " for windows of ", windows.sizes(),
                        ", which is not a class for each voxel"));
}

}  // namespace

std::vector<std::string> blend_names() {
  std::vector<std::string> names;
  for (const BlendName& blend : blends()) names.push_back(blend.name);
  return names;
}

Blend parse_blend(const std::string& name) { return choose("blend", name, blends()).blend; }

std::vector<std::int64_t> window_starts(std::int64_t size, std::int64_t window, double overlap) {
  if (window < 1 || window > size || !(overlap >= 0 && overlap < 1))
    throw UsageError(text("windows of ", window, " voxels with an overlap of ", overlap,
                          " do not fit a side of ", size));
  const std::int64_t room = size - window;
  const auto step = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(window) * (1 - overlap)));
  const std::int64_t last = (room + step - 1) / step;  // the number of steps
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t i = 1; i <= last; ++i) starts.push_back((room * i + last / 2) / last);
  return starts;
}

std::vector<Sides> windows_of(const Sides& sides, const Sides& window, double overlap) {
  std::vector<Sides> windows;
  for (const std::int64_t z : window_starts(sides[0], window[0], overlap))
    for (const std::int64_t y : window_starts(sides[1], window[1], overlap))
      for (const std::int64_t x : window_starts(sides[2], window[2], overlap))
        windows.push_back({z, y, x});
  return windows;
}

at::Tensor blend_weights(const Sides& window, Blend blend) {
  at::Tensor weights = at::empty(window, at::kFloat);
  float* to = weights.mutable_data_ptr<float>();
  double largest = 0;
  for (std::int64_t z = 0; z < window[0]; ++z)
    for (std::int64_t y = 0; y < window[1]; ++y)
      for (std::int64_t x = 0; x < window[2]; ++x) {
        const double weight = weight_along(z, window[0], blend) *
                              weight_along(y, window[1], blend) * weight_along(x, window[2], blend);
        largest = std::max(largest, weight);
        *to++ = static_cast<float>(weight);
      }
  return weights.div_(largest).clamp_min_(smallest_weight);
}

at::Tensor slide(const at::Tensor& volume, const SlidingWindowOptions& options,
                 const std::function<at::Tensor(const at::Tensor& windows)>& model) {
  if (volume.dim() != 4)
    throw UsageError(text("a volume is [channels, slices, rows, columns], not ", volume.sizes()));
  const Sides& window = options.window;
  const Sides own = {volume.size(1), volume.size(2), volume.size(3)};
  const std::vector<std::int64_t> padding = missing_sides(own, window);
  const bool padded = std::ranges::any_of(padding, [](std::int64_t side) { return side > 0; });
  const at::Tensor whole =
      padded ? at::replication_pad3d(volume.unsqueeze(0), padding).squeeze(0) : volume;
  const Sides sides = {whole.size(1), whole.size(2), whole.size(3)};
  const at::Tensor weights = blend_weights(window, options.blend);
  const std::vector<Sides> starts = windows_of(sides, window, options.overlap);
  at::Tensor sum, total = at::zeros(sides, at::kFloat);
  const auto batch = static_cast<std::size_t>(std::max<std::int64_t>(options.batch, 1));
  for (std::size_t first = 0; first < starts.size(); first += batch) {
    const std::size_t end = std::min(first + batch, starts.size());
    std::vector<at::Tensor> parts;
    for (std::size_t i = first; i < end; ++i) parts.push_back(cut(whole, starts[i], window));
    const at::Tensor windows = at::stack(parts);
    const at::Tensor scores = model(windows);
    check_scores(scores, windows);
    const at::Tensor probabilities = at::softmax(scores.to(at::kFloat), 1);
    if (!sum.defined()) sum = at::zeros({scores.size(1), sides[0], sides[1], sides[2]}, at::kFloat);
    for (std::size_t i = first; i < end; ++i) {
      const auto row = static_cast<std::int64_t>(i - first);
      cut(sum, starts[i], window).add_(probabilities[row] * weights);
      cut(total, starts[i], window).add_(weights);
    }
  }
  sum.div_(total);
  return cut(sum, {padding[4], padding[2], padding[0]}, own).contiguous();
}

}  // namespace trestle::data
