#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

// What a model learns from: examples by number.
namespace trestle::data {

struct Sample {
  at::Tensor input = {};
  at::Tensor target = {};
  std::string name = {};  // of the example, for messages and pictures: an image's id, or a number
  // Whatever else an example has, such as its weight in the loss: stacked as the others are.
  std::vector<at::Tensor> more = {};
};

// What of an example is needed: over ranks the first stage takes inputs, the loss targets.
enum class Part { Both, Input, Target };

// A data set. Implement size() and get(); loaders call get() from several threads at once, so it
// must not change anything that another call sees. Tensors are on the CPU. Whatever get() throws
// reaches who consumes the batches.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // Example `index`, 0 <= index < size().
  virtual Sample get(std::int64_t index) const = 0;

  // The same, where only one part is needed: the other one may be undefined, `more` empty, the name is
  // there. For data sets that would decode a file for it; the others leave it at get().
  virtual Sample get_part(std::int64_t index, Part /*part*/) const { return get(index); }
};

}  // namespace trestle::data
