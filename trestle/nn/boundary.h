#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/nn/value.h"

// Write access to a tensor that crosses a boundary: from the caller to a stage, from stage to
// stage, from a model to its loss.
//
// A tensor that is also needed elsewhere is never written to. A consumer that works in place gets a
// copy if only the library or the caller keeps the original (a stage's inputs kept for
// recomputation, a tensor shared by two stages on one device, the caller's own batch). If another
// layer takes the same value, an in-place layer is an error (segment.h).
namespace trestle::nn {

// A consumer's arguments, and which of them it writes to. Autograd's version counters show writes
// only afterwards, so the first run in each mode (see `mode` below) gets copies. Several threads
// may use one object.
//
//   auto handed = boundary.hand_over(values, owned, mode);
//   consumer(handed.values);
//   boundary.take_back(handed);
class Boundary {
 public:
  // `consumer` and the values' names are for error messages.
  Boundary(std::string consumer, std::vector<std::string> names);

  const std::string& consumer() const { return consumer_; }

  struct Handed {
    Values values;  // the consumer's arguments, the tensors or copies; may be moved from
    std::vector<c10::VariableVersion> counters;  // count the changes to `values`' memory
    std::vector<std::uint32_t> versions;         // the counters before the consumer ran
    std::vector<bool> may_write;                 // copies, and values owned by the consumer
    std::uint64_t mode = 0;
  };

  // Passes an `owned` value, needed by no one else afterwards, as it is. Also passes a value as it
  // is if the consumer is known to leave it alone. A value that the consumer writes to, or takes
  // for the first time, is passed as a copy, made in the caller's grad mode. `mode` separates runs
  // that may write to different values, such as training and evaluation.
  Handed hand_over(const Values& values, const std::vector<bool>& owned, std::uint64_t mode);

  // Records which values were written to. Throws StateError if the consumer wrote to an original
  // that it had left alone in this mode before: another user of it now has a wrong value.
  void take_back(const Handed& handed);

 private:
  enum class Access : std::uint8_t { Unknown, Read, Written };

  const std::string consumer_;
  const std::vector<std::string> names_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<Access>> access_;  // by mode, for each value
};

// autograd's counter of changes to a tensor's memory; 0 for None and for inference tensors.
std::uint32_t version_of(const at::Tensor& tensor);

// The size of the tensor's whole storage, of which the tensor may be a view.
Bytes memory_of(const at::Tensor& tensor);
bool is_part_of_more(const at::Tensor& tensor);  // a view of a larger storage; false for None

// The byte range of a tensor in its storage. Does not touch the memory, so a freed parameter is
// allowed.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool dense = false;  // uses every byte of the range

  static Extent of(const at::Tensor& tensor);
  bool may_meet(const Extent& other) const;
};

// Whether the two share memory, or might. Views of disjoint ranges do not, if they are dense.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b);

// The inputs of a stage's own graph: collects their gradients.
class GradientSink {
 public:
  explicit GradientSink(std::size_t inputs);

  // Makes `value` (without history) the first tensor of a graph. A layer may change it in place, as
  // in the unsplit model; torch refuses that for a leaf. Shares memory and version counter with
  // `value`. The graph itself keeps neither, so the memory is freed as soon as no operator needs
  // it.
  at::Tensor begin(std::size_t input, const at::Tensor& value);

  // The gradient that a backward produced for `input`; None if there is none.
  at::Tensor gradient(std::size_t input) const { return gradients_->at(input); }
  // The end of the graph where the gradient of `input` arrives; not valid without begin().
  const torch::autograd::Edge& edge(std::size_t input) const { return edges_.at(input); }

 private:
  std::shared_ptr<Values> gradients_;
  std::vector<torch::autograd::Edge> edges_;  // [input]
};

}  // namespace trestle::nn
