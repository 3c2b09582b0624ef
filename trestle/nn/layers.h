#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/make_layer.h"

namespace torch::nn {
class SequentialImpl;
class Sequential;
}  // namespace torch::nn

// A model as a sequence of layers with named taps: the short form of a Graph.
//
//   trestle::nn::Layers net;
//   net.add("in", DoubleConv(3, 64)).keep_output("s1");  // keep the output under a name
//   net.add("down", Down(64, 128));
//   net.add("up", Up(128, 64)).take("s1");               // calls Up's forward(x, skip)
//   net.add("out", torch::nn::Conv2d(64, 2, 1));
//   at::Tensor y = net.forward(x);                       // the plain model
//
// A layer may be given as a factory, a function that creates its module:
//
//   trestle::nn::Layers net(trestle::nn::Seed{7});
//   net.add("block7", [] { return Block(512); });
//
// The factory's return type gives the layer's arguments and outputs, so graph() and a pipeline's
// cut need no module. The factory is called when the module is first needed: by forward(),
// named_parameters() and similar functions, to(), or layer.module.make() of one layer of graph().
// Its random numbers depend only on the seed and the layer's full name. They do not depend on the
// other layers, nor on the order and thread in which modules are created. Torch's default generator
// is neither read nor advanced.
namespace trestle::nn {

struct Seed {
  std::uint64_t value = 0;
};

class Layers {
 public:
  // The result of add(), to connect the new layer. For a nested model, take() and keep_input()
  // apply to its first layer, and the other functions to its last.
  class Added {
   public:
    // Keeps the layer's output number `output` (or its first argument) for later layers, under
    // `name`. Any number of later layers may take a kept value.
    Added& keep_output(std::string name, int output = 0);
    Added& keep_input(std::string name);
    // Passes a kept value to the layer's next free argument. In a nested container, a name belongs
    // to that container; from outside it is "<container>.<name>".
    Added& take(std::string name);
    // Selects the outputs that become the next layer's first arguments. The default is all outputs
    // that are not kept by keep_output(name, i > 0). Required for a layer that returns a
    // std::vector of tensors.
    Added& pass_on(std::vector<int> outputs);

   private:
    friend class Layers;
    Added(Layers& layers, std::size_t first, std::size_t last)
        : layers_(&layers), first_(first), last_(last) {}
    Layers* layers_;
    std::size_t first_;
    std::size_t last_;
  };

  Layers();                     // one input tensor, seed 0
  explicit Layers(int inputs);  // a model of several input tensors
  explicit Layers(Seed seed, int inputs = 1);
  // Takes a plain torch::nn::Sequential, one layer for each child, under torch's own names: "0",
  // "1", ... Its modules are shared, not copied. Children must map one tensor to one tensor.
  Layers(const torch::nn::Sequential& sequential);  // NOLINT(google-explicit-constructor)

  // Appends a layer: a module holder, a std::shared_ptr to a module, a module by value, a factory
  // that returns one of these, or a function of tensors (make_layer.h).
  template <class Module>
  Added add(std::string name, Module module) {
    return append(make_layer(std::move(name), std::move(module)));
  }
  // Appends another model's layers in place, their names prefixed with "<name>.". The values of its
  // also_return() become arguments of the next layer, after the outputs of its last layer. Modules
  // are shared, not copied. Modules not created yet get their new full names and, unless the nested
  // model has its own seed, this model's seed. Throws UsageError if it has no layers.
  Added add(std::string name, const Layers& nested);
  Added add(std::string name, const torch::nn::Sequential& sequential);
  Added append(Layer layer);

  // Ties a parameter of one layer to that of another, so that they are the same tensor, such as an
  // output layer and the embedding: tie("head.weight", "embed.weight"). Both layers must have been
  // added. The second one owns the parameter, which is listed under that name alone. Creating the
  // first layer ties them and creates the second one too; existing modules are tied at once. Throws
  // UsageError for a layer that does not exist. A wrong parameter name or shape is reported when
  // the layer is created.
  //
  // A parameter of torch's own layers is found by its name. For other modules, give the member that
  // holds it: tie("head.table", "embed.weight", &HeadImpl::table).
  Layers& tie(const std::string& parameter, const std::string& owner) {
    return tie(parameter, owner, FindMember());
  }
  template <class Impl>
  Layers& tie(const std::string& parameter, const std::string& owner, at::Tensor Impl::*member) {
    return tie(parameter, owner, FindMember([member](torch::nn::Module& module) {
                 auto* const typed = dynamic_cast<Impl*>(&module);
                 return typed ? &(typed->*member) : nullptr;
               }));
  }
  Layers& tie(const std::string& parameter, const std::string& owner, FindMember find_member);

  // Also returns these kept values, after the last layer's output.
  Layers& also_return(std::string name);

  // The resolved wiring. Throws UsageError that lists every mistake by name: a value taken that no
  // layer keeps, or only a later layer; a name kept twice; an argument without a value; more values
  // than arguments; an output that does not exist; the same module twice; one layer's name twice; a
  // parameter shared by two layers.
  Graph graph() const;

  // Runs the plain model. It resolves the wiring at each call: for a hot loop, keep graph() and use
  // run(graph, inputs).
  Values forward(const Values& inputs) const;
  // For one input and one output; throws UsageError otherwise.
  at::Tensor forward(const at::Tensor& input) const;

  // Parameters and buffers under their unsplit names, "<layer>.<parameter>", in the order of the
  // layers.
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  std::vector<at::Tensor> parameters() const;
  std::int64_t parameter_count() const;

  void train();  // both modes also apply to modules created later
  void eval();
  void to(at::Device device);  // in place; creates and moves one layer after the other
  void zero_grad();
  std::size_t size() const;

 private:
  struct State;
  State& state();  // for changes: a copy of Layers shares the modules, not the wiring
  std::shared_ptr<State> state_;
};

}  // namespace trestle::nn
