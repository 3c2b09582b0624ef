#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/value.h"

// Runs a part of a model: all of it for the plain model, a stage's layers for a pipeline.
namespace trestle::nn {

// The layers [first, last) of a graph, and the values that they exchange with the rest. Everything
// that does not change from run to run is looked up once, here. The graph must outlive the segment.
//
// No layer may write to a value that another layer takes too, or that shares memory with one, or
// with a parameter or buffer: run() refuses that by name. It is refused wherever the graph is cut, so that every plan of a model
// gives the same numbers or the same error.
class Segment {
 public:
  // `inputs`: values made elsewhere that these layers take, in the order in which run() gets them.
  // `outputs`: values made here or among the inputs, in the order in which run() returns them.
  Segment(const Graph& graph, int first, int last, std::vector<ValueId> inputs,
          std::vector<ValueId> outputs);

  struct Result {
    Values outputs;
    // For each output: who has its memory too; nobody, and layers may write to it.
    std::vector<std::optional<SharedWith>> outputs_shared;
    // autograd's counter before each layer, and behind the last: tells which layer made a node.
    std::vector<std::uint64_t> node_numbers;
  };

  // A value is let go as soon as its last user has run. `inputs_shared` as Result::outputs_shared of
  // the segments that made them; empty = none is. With `key` each layer's random numbers are keyed.
  // Throws what a layer throws, with the layer's name and its arguments' shapes.
  Result run(Values inputs, const std::vector<std::optional<SharedWith>>& inputs_shared,
             const RunKey* key) const;

  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }

  // "output 'conv'", "input 0 of the model": how messages name a value.
  std::string describe(ValueId value) const;

 private:
  struct Slot {  // a value's place during a run
    ValueId value;
    int uses = 0;         // arguments and outputs of this segment that want it
    bool shared = false;  // more than one argument, here or elsewhere, takes it
  };
  struct Step {
    std::vector<int> arguments;                // slots; -1 = None
    std::vector<std::pair<int, int>> results;  // (output, slot) of those that somebody takes
    std::vector<at::Tensor> parameters;        // of the layer's module
    std::vector<at::Tensor> buffers;
  };
  struct Frame;  // the state of one run

  void check_writes(int layer, const Frame& frame, const Values& arguments,
                    const std::vector<std::uint32_t>& versions) const;
  ValueId argument_value(int layer, int argument) const;
  [[noreturn]] void refuse_write(int layer, int argument, const SharedWith& shared) const;
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

// How many arguments (outputs of the model counted) take each value.
std::map<ValueId, int> takers(const Graph& graph);

}  // namespace trestle::nn
