#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/layer.h"
#include "trestle/nn/run_key.h"

// A model's resolved wiring, the input of cutting, balancing and routing.
namespace trestle::nn {

inline constexpr int model_input = -1;  // Edge::from_layer of the caller's inputs

// A connection from one layer's output to one layer's argument.
struct Edge {
  int from_layer = model_input;  // or model_input
  int from_output = 0;           // which output of that layer, or which input of the model
  int to_layer = 0;              // layer index, or graph.layers.size() for an output of the model
  int to_argument = 0;           // which argument, or which output of the model
  std::string name = {};         // the tap's full name; "" for the main lane

  friend bool operator==(const Edge&, const Edge&) = default;
};

// One value of the model: an output of a layer, or (layer == model_input) an input of the model.
struct ValueId {
  int layer = model_input;
  int output = 0;
  friend auto operator<=>(const ValueId&, const ValueId&) = default;
};

// The owner of memory that a value shares, so that no layer may write to it: another value, the
// value itself if several arguments take it, or a parameter or buffer of the layer that made
// `value`.
struct SharedWith {
  enum class Owner : std::uint8_t { Value, Parameter, Buffer };
  ValueId value;
  Owner owner = Owner::Value;
};

// A parameter that is another layer's: see Layers::tie(). The two layers' modules share it already.
struct ParameterTie {
  int layer = 0;
  std::string parameter = {};  // "weight"
  int owner = 0;               // the layer that owns it
  std::string owner_parameter = {};
};

struct Graph;
// Undoes what a pipeline did to tied parameters, for a caller that runs the layers without it: the
// stages of a pipeline have copies of them (pipeline/execute/tied_copies.h). A copy on the owner's
// device is replaced by the owner's tensor. One on another device gets the owner's value. The next
// run of the pipeline puts its copies in place again. Layers::forward() calls this.
void tie_again(const Graph& graph);

// The layer that owns a tied parameter, at the end of a chain of ties, and its name there.
std::pair<int, std::string> owner_of(const Graph& graph, const ParameterTie& tie);

struct Graph {
  std::vector<Layer> layers;  // in the order in which they run
  std::vector<Edge> edges;    // every connection, ordered by (to_layer, to_argument)
  int inputs = 1;             // number of tensors the model takes
  int outputs = 1;            // number of tensors it returns
  std::vector<ParameterTie> ties = {};
};

// The parameters of which this rank holds a slice, under the model's names. Creates all layers.
ParameterSlices slices_of(const Graph& graph);

// Throws UsageError that lists every mistake of a graph by name: an edge from or to a missing layer
// or from a later layer, an argument without a value or with two, more values than arguments, an
// output that does not exist, one name for two layers, the same module twice, a parameter shared by
// two layers. Layers::graph() returns only graphs that pass.
void check(const Graph& graph);

// Runs the plain, unsplit model: all layers in order. With `key` the random numbers are keyed as in
// the pipeline. Throws UsageError with the layer's name if a layer writes to a value that another
// layer takes too, as a pipeline does (segment.h).
Values run(const Graph& graph, const Values& inputs);
Values run(const Graph& graph, const Values& inputs, const RunKey& key);

// Runs layer `index` with its arguments under its LayerScope and, if `key` is given, its random
// key. An exception keeps its type and gains the layer's name and the arguments' shapes.
Values run_layer(const Graph& graph, int index, const Values& arguments, const RunKey* key);

}  // namespace trestle::nn
