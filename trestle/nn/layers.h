#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/layer.h"

namespace torch::nn {
class SequentialImpl;
class Sequential;
}  // namespace torch::nn

// A model as layers in a row with named taps: the short form of a Graph.
//
//   trestle::nn::Layers net;
//   net.add("in", DoubleConv(3, 64)).keep_output("s1");  // also keep what comes out, under a name
//   net.add("down", Down(64, 128));
//   net.add("up", Up(128, 64)).take("s1");               // calls Up's forward(x, skip)
//   net.add("out", torch::nn::Conv2d(64, 2, 1));
//   at::Tensor y = net.forward(x);                       // the plain model
namespace trestle::nn {

class Layers {
 public:
  // What add() returns, to connect the layer that was just added. After adding a nested model,
  // values are taken by (and keep_input keeps the input of) its first layer, and outputs are those
  // of its last.
  class Added {
   public:
    // Keeps the layer's output number `output` (or its first argument) for later layers, under
    // `name`. One kept value may be taken by any number of later layers, or by none.
    Added& keep_output(std::string name, int output = 0);
    Added& keep_input(std::string name);
    // Hands a kept value to the layer's next free argument. In a nested container, a name belongs
    // to that container; from outside it is "<container>.<name>".
    Added& take(std::string name);
    // Which of the outputs go on to the next layer's first arguments; by default all outputs that
    // are not kept by keep_output(name, i > 0). A layer that returns a std::vector of tensors must
    // say it.
    Added& pass_on(std::vector<int> outputs);

   private:
    friend class Layers;
    Added(Layers& layers, std::size_t first, std::size_t last)
        : layers_(&layers), first_(first), last_(last) {}
    Layers* layers_;
    std::size_t first_;
    std::size_t last_;
  };

  Layers();
  explicit Layers(int inputs);  // a model of several input tensors (default 1)
  // A plain torch::nn::Sequential goes in as it is, one layer for each child, under torch's own
  // names: "0", "1", ... Its modules are shared, not copied. Children must map one tensor to one
  // tensor.
  Layers(const torch::nn::Sequential& sequential);  // NOLINT(google-explicit-constructor)

  // Appends a layer: a module holder, a std::shared_ptr to a module, or a function of tensors.
  template <class Module>
  Added add(std::string name, Module module) {
    return append(make_layer(std::move(name), std::move(module)));
  }
  // Appends another model's layers in place, their names prefixed with "<name>.". What it
  // also_return()s goes on to the next layer behind its last layer's outputs. Throws UsageError
  // when it has no layers.
  Added add(std::string name, const Layers& nested);
  Added add(std::string name, const torch::nn::Sequential& sequential);
  Added append(Layer layer);

  // Returns these kept values too, after the last layer's output.
  Layers& also_return(std::string name);

  // The resolved wiring. Throws UsageError listing every mistake at once, by name: a value taken
  // that nobody keeps, or that is kept later; a name kept twice; an argument left without a value;
  // more values than arguments; an output that does not exist; the same module twice; one layer's
  // name twice; a parameter shared by two layers.
  Graph graph() const;

  // The plain model. Resolves the wiring at each call: for a hot loop, keep graph() and use
  // run(graph, inputs).
  Values forward(const Values& inputs) const;
  at::Tensor forward(
      const at::Tensor& input) const;  // one tensor in, one out; throws UsageError otherwise

  // Parameters and buffers under their unsplit names, "<layer>.<parameter>", in the order of the
  // layers.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;
  std::vector<at::Tensor> parameters() const;
  std::int64_t parameter_count() const;

  void train();
  void eval();
  void to(at::Device device);
  void zero_grad();
  std::size_t size() const;

 private:
  struct State;
  State& state();  // for changes: a copy of Layers shares the modules, never the wiring
  std::shared_ptr<State> state_;
};

}  // namespace trestle::nn
