#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/pipeline/execute/cut.h"
#include "trestle/pipeline/execute/stage_list.h"
#include "trestle/pipeline/transport/stage_transport.h"

namespace trestle::pipeline {

// Parameters that layers of several stages use (Cut::ties). The owner's tensor alone is a parameter
// of the pipeline: it has the gradient, the norm, the optimizer's state and the place in a
// checkpoint. Each other stage that uses it has a copy:
//
// - Before the first forward of a run the owner's stage sends the value to the copies.
// - After its last backward a copy's stage sends the gradient and clears its own. The owner's stage
//   adds the gradients, in the order of stages.
//
// So a copy never differs from the owner where it is used: after a step of any optimizer, after
// weights were loaded, and after the parameter was frozen.
class TiedCopies {
 public:
  // Whether a copy may share the memory of an owner on the same device.
  enum class Memory { Shared, Separate };

  TiedCopies(const nn::Graph& graph, const Cut& cut, Memory memory)
      : graph_(graph), cut_(cut), memory_(memory), ends_(cut.ties.size()) {}
  TiedCopies(const TiedCopies&) = delete;
  TiedCopies& operator=(const TiedCopies&) = delete;

  // Creates layer `layer` of a stage of this process, with the stage's copies in place of the
  // parameters of other stages. Called before the layer moves to `device`, in the order of layers.
  // Creates the owner of a copy only for that time, unless it exists already.
  void make_layer(int layer, at::Device device);
  // After the layers of all stages of this process are made.
  void find_owners(const StageList& stages);

  // Before a run. A plain forward of the layers, or another pipeline of the same layers, may have
  // put other tensors in place.
  void put_in_place() const;

  // The message with the owner's value. The next take_value() of the tie takes it.
  enum class Use { Training, Evaluation };
  Message value(int tie, const at::Tensor& whole);
  void take_value(int tie, const Message& message, Use use);
  // The message with a copy's gradient, which the copy loses.
  Message gradient(int tie);
  void add_gradient(int tie, const Message& message);

  const at::Tensor& owner(int tie) const { return ends_.at(static_cast<std::size_t>(tie)).owner; }
  const at::Tensor& copy(int tie) const { return ends_.at(static_cast<std::size_t>(tie)).copy; }

 private:
  struct Ends {
    at::Tensor owner, copy;     // None if the stage is in another process
    std::uint32_t version = 0;  // of the owner, when its value was last sent
    bool was_sent = false;
  };
  // None if the layer's owner is not in this process.
  at::Tensor tensor_for(const nn::ParameterTie& use) const;
  void give_copy(int tie, const nn::ParameterTie& use, at::Device device);

  const nn::Graph& graph_;
  const Cut& cut_;
  Memory memory_;
  std::vector<Ends> ends_;  // [tie]
};

}  // namespace trestle::pipeline
