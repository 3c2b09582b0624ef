#include "trestle/data/mnist.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/content_hash.h"

namespace trestle::data {

MnistDataset::MnistDataset(const std::filesystem::path& folder, MnistPart part)
    : arrays_(read_mnist(folder, part)) {}

std::uint64_t MnistDataset::content_hash() const {
  const auto hash_of = [](const auto& bytes) {
    return checkpoint::content_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  static_assert(sizeof arrays_.images.pixels[0] == 1 && sizeof arrays_.labels[0] == 1);
  const std::string hashes = hash_of(arrays_.images.pixels) + hash_of(arrays_.labels);
  return std::stoull(checkpoint::content_hash(hashes), nullptr, 16);
}

Sample MnistDataset::get(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw UsageError(text("example ", index, " of ", size(), " in MNIST"));
  }
  const IdxImages& images = arrays_.images;
  at::Tensor input = at::empty({1, images.rows, images.columns}, at::kFloat);
  const std::int64_t count = input.numel();
  std::transform(images.pixels.begin() + index * count, images.pixels.begin() + (index + 1) * count,
                 input.data_ptr<float>(), [](std::uint8_t value) { return value / 255.0f; });
  at::Tensor target = at::scalar_tensor(
      static_cast<std::int64_t>(arrays_.labels[static_cast<std::size_t>(index)]), at::kLong);
  return {std::move(input), std::move(target), std::to_string(index)};
}

}  // namespace trestle::data
