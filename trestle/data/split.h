#pragma once

#include <cstdint>
#include <vector>

// Which examples train and which validate.
namespace trestle::data {

struct Split {
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> validation;
};

// A random permutation of `count` examples: the last int(count * fraction) validate, the others
// train. It has a generator of its own, so nothing else that draws numbers can move it, and it is
// to the last index what Python gives:
//
//     n = int(count * fraction)
//     generator = torch.Generator().manual_seed(seed)
//     torch.utils.data.random_split(dataset, [count - n, n], generator=generator)
//
// With 5088 examples and 0.2: 4071 train, 1017 validate. Throws UsageError unless 0 <= fraction < 1
// and at least one example is left to train on.
Split random_split(std::int64_t count, double fraction, std::uint64_t seed);

}  // namespace trestle::data
