#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

// Data sets: examples by number.
namespace trestle::data {

struct Sample {
  at::Tensor input = {};
  at::Tensor target = {};
  std::string name = {};  // for messages and pictures: an image's id, or a number
  // Further tensors of an example, such as its weight in the loss; batches stack them too.
  std::vector<at::Tensor> more = {};
};

// The part of an example to read. Over ranks, the first stage needs inputs, the loss targets.
enum class Part { Both, Input, Target };

// A data set. Implement size() and get(). Loaders call get() from several threads at once, so it
// must not change state that another call uses. Tensors are on the CPU. The batches' consumer
// receives the exceptions of get().
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // Example `index`, 0 <= index < size().
  virtual Sample get(std::int64_t index) const = 0;

  // The same for one part of the example: the other part may be undefined and `more` empty, but the
  // name is set. Override it if get() would decode a file for the other part.
  virtual Sample get_part(std::int64_t index, Part /*part*/) const { return get(index); }

  // A number that changes when any value of any example does, for examples that are in memory; 0 =
  // not known. A resumed run compares it with that of its checkpoint.
  virtual std::uint64_t content_hash() const { return 0; }

  // The same for a data set that draws something of an example at random, such as the place of a
  // patch. Loaders call it; `key` depends only on (seed, epoch, index).
  virtual Sample draw(std::int64_t index, Part part, std::uint64_t /*key*/) const {
    return part == Part::Both ? get(index) : get_part(index, part);
  }
};

}  // namespace trestle::data
