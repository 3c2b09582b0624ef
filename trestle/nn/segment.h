#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/value.h"

// Runs a range of a model's layers: all of them for the plain model, a stage's for a pipeline.
namespace trestle::nn {

// The layers [first, last) of a graph, and the values that they exchange with other layers. The
// constructor looks up everything that is the same in every run. The graph must outlive the
// segment.
//
// No layer may write to a value that another layer takes too, or that shares memory with one, or
// with a parameter or buffer: run() throws an error with the layer's name. The check does not
// depend on the cut, so every plan of a model gives the same numbers or the same error.
// gives the same numbers or the same error.
class Segment {
 public:
  // `inputs`: values from outside that these layers take, in the order of run()'s inputs.
  // `outputs`: values made here or among the inputs, in the order in which run() returns them.
  Segment(const Graph& graph, int first, int last, std::vector<ValueId> inputs,
          std::vector<ValueId> outputs);

  struct Result {
    Values outputs;
    // For each output: the owner of shared memory; none if layers may write to the output.
    std::vector<std::optional<SharedWith>> outputs_shared;
    // autograd's counter before each layer, and after the last: tells which layer created a node.
    std::vector<std::uint64_t> node_numbers;
  };

  // Frees a value as soon as its last user has run. `inputs_shared` is Result::outputs_shared of
  // the segments that made the inputs; empty = none is shared. With `key` each layer's random
  // numbers are keyed. Throws a layer's exception with the layer's name and its arguments' shapes
  // added.
  Result run(Values inputs, const std::vector<std::optional<SharedWith>>& inputs_shared,
             const RunKey* key) const;

  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }

  // A value's name for messages: "output 'conv'", "input 0 of the model".
  std::string describe(ValueId value) const;

 private:
  struct Slot {  // a value's place during a run
    ValueId value;
    int uses = 0;         // number of this segment's arguments and outputs that use it
    bool shared = false;  // more than one argument, here or elsewhere, takes it
  };
  struct Step {
    std::vector<int> arguments;                // slots; -1 = None
    std::vector<std::pair<int, int>> results;  // (output, slot) of the used results
    std::vector<at::Tensor> parameters;        // of the layer's module
    std::vector<at::Tensor> buffers;
  };
  struct Frame;  // the state of one run

  void check_writes(int layer, const Frame& frame, const Values& arguments,
                    const std::vector<std::uint32_t>& versions) const;
  ValueId argument_value(int layer, int argument) const;
  [[noreturn]] void throw_write_error(int layer, int argument, const SharedWith& shared) const;
  std::string takers_but(ValueId value, int layer, int argument) const;

  const Graph& graph_;
  int first_;
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
  std::vector<Slot> slots_;
  std::vector<Step> steps_;  // one for each layer
  std::vector<int> input_slots_;
  std::vector<int> output_slots_;
};

// The number of arguments (including outputs of the model) that take each value.
std::map<ValueId, int> takers(const Graph& graph);

}  // namespace trestle::nn
