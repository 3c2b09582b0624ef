#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Parameters of which a rank holds a slice: tensor parallelism. No torch.
namespace trestle::nn {

// Consecutive indices of a dimension.
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  bool operator==(const IndexRange&) const = default;
};

// The range of part `rank` when `whole` indices are divided into `parts` parts. The first
// `whole % parts` parts have one index more than the later parts.
constexpr IndexRange even_range(std::int64_t whole, std::int64_t parts, std::int64_t rank) {
  const std::int64_t least = whole / parts, more = whole % parts;
  return {rank * least + (rank < more ? rank : more), least + (rank < more ? 1 : 0)};
}

// The slice of a parameter that this rank holds: some ranges of one dimension, one after the other.
// A fused projection of queries, keys and values has a range for each of them.
struct ParameterSlice {
  std::vector<std::int64_t> whole;  // the shape of the parameter in the unsplit model
  std::int64_t dimension = 0;
  std::vector<IndexRange> ranges;

  // The number of indices of `dimension` that this rank holds.
  std::int64_t size() const {
    std::int64_t sum = 0;
    for (const IndexRange& range : ranges) sum += range.size;
    return sum;
  }
  // The shape of this rank's tensor.
  std::vector<std::int64_t> shape() const {
    std::vector<std::int64_t> own = whole;
    own[static_cast<std::size_t>(dimension)] = size();
    return own;
  }
  bool operator==(const ParameterSlice&) const = default;
};

// By the names of parameters, and of buffers such as a batch norm's statistics. One that is not
// listed is whole on every rank.
using ParameterSlices = std::map<std::string, ParameterSlice>;

// The interface of a module that holds slices of its own parameters.
class SlicedParameters {
 public:
  virtual ~SlicedParameters() = default;
  // By the module's own names, such as "weight".
  virtual ParameterSlices parameter_slices() const = 0;

 protected:
  SlicedParameters() = default;
  SlicedParameters(const SlicedParameters&) = default;
  SlicedParameters& operator=(const SlicedParameters&) = default;
};

}  // namespace trestle::nn
