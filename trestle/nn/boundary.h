#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/nn/value.h"

// Who may write to a tensor that crosses a boundary: from the caller to a stage, from stage to
// stage, from a model to its loss.
//
// A tensor that somebody else also needs is never written to. A consumer that works in place gets a
// copy where only the library or the caller keeps the original (a stage's inputs kept for
// recomputation, a tensor that two stages on one device share, the caller's own batch); where
// another layer takes the same value, in-place work is refused (segment.h).
namespace trestle::nn {

// A consumer's arguments, and which of them it writes to. That shows only afterwards, by autograd's
// version counters, so the first run in each mode (see `mode` below) is on copies. Several threads
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
    Values values;  // what the consumer gets, the tensors or copies; may be moved from
    std::vector<c10::VariableVersion> counters;  // count the changes to `values`' memory
    std::vector<std::uint32_t> versions;         // what they stood at
    std::vector<bool> may_write;                 // copies, and what the consumer owns
    std::uint64_t mode = 0;
  };

  // A value that nobody else needs afterwards (`owned`) is handed over as it is. So is one that the
  // consumer is known to leave alone; one that it writes to, or that it has not been seen with yet,
  // goes as a copy, made in the caller's grad mode. `mode` tells apart runs that may differ in what
  // they write to, for example training from evaluation.
  Handed hand_over(const Values& values, const std::vector<bool>& owned, std::uint64_t mode);

  // Notes what was written to. Throws StateError where the consumer wrote to an original that it had
  // left alone so far in this mode: somebody else now has a wrong value.
  void take_back(const Handed& handed);

 private:
  enum class Access : std::uint8_t { Unknown, Read, Written };

  const std::string consumer_;
  const std::vector<std::string> names_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<Access>> access_;  // by mode, for each value
};

// autograd's count of changes to a tensor's memory; 0 for None and for inference tensors.
std::uint32_t version_of(const at::Tensor& tensor);

// All of the memory that a tensor holds on to: it may be a view of more.
Bytes memory_of(const at::Tensor& tensor);
bool is_part_of_more(const at::Tensor& tensor);  // more than its own elements; not for None

// Which bytes of its storage a tensor may take. It asks for no memory: that of a parameter may be away
// just now.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool dense = false;  // takes all of them

  static Extent of(const at::Tensor& tensor);
  bool may_meet(const Extent& other) const;
};

// Do the two share memory, or might they? Views of disjoint parts do not, where that is easily told.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b);

// Where a stage's own graph ends: the gradients of its inputs are collected here.
class GradientSink {
 public:
  explicit GradientSink(std::size_t inputs);

  // `value` (without history) as the first tensor of a graph: a layer may change it in place, as it
  // may in the unsplit model, where torch refuses that for a leaf. Shares memory and version counter
  // with `value`; the graph itself keeps neither, so the value's memory goes as soon as no operator
  // needs it.
  at::Tensor begin(std::size_t input, const at::Tensor& value);

  // The gradient that a backward left for `input`; None if none came.
  at::Tensor gradient(std::size_t input) const { return gradients_->at(input); }

 private:
  std::shared_ptr<Values> gradients_;
};

}  // namespace trestle::nn
