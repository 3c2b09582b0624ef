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

// A model as layers in a row with named taps: the short form of a Graph.
//
//   trestle::nn::Layers net;
//   net.add("in", DoubleConv(3, 64)).keep_output("s1");  // also keep what comes out, under a name
//   net.add("down", Down(64, 128));
//   net.add("up", Up(128, 64)).take("s1");               // calls Up's forward(x, skip)
//   net.add("out", torch::nn::Conv2d(64, 2, 1));
//   at::Tensor y = net.forward(x);                       // the plain model
//
// A layer may be given as a factory, a function that makes its module:
//
//   trestle::nn::Layers net(trestle::nn::Seed{7});
//   net.add("block7", [] { return Block(512); });
//
// Its return type tells what the layer takes and returns, so graph() and a pipeline's cut need no
// module. It is called when the module is first needed: by forward(), named_parameters() and their
// like, to(), or layer.module.make() of one layer of graph(). Its random numbers depend on the seed
// and the layer's full name alone: which other layers there are, and which of them are made, in
// which order and by which thread, changes nothing, and torch's default generator is neither read
// nor moved.
namespace trestle::nn {

struct Seed {
  std::uint64_t value = 0;
};

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

  Layers();                     // one input tensor, seed 0
  explicit Layers(int inputs);  // a model of several input tensors
  explicit Layers(Seed seed, int inputs = 1);
  // A plain torch::nn::Sequential goes in as it is, one layer for each child, under torch's own
  // names: "0", "1", ... Its modules are shared, not copied. Children must map one tensor to one
  // tensor.
  Layers(const torch::nn::Sequential& sequential);  // NOLINT(google-explicit-constructor)

  // Appends a layer: a module holder, a std::shared_ptr to a module, a module by value, a factory
  // that returns one of these, or a function of tensors (make_layer.h).
  template <class Module>
  Added add(std::string name, Module module) {
    return append(make_layer(std::move(name), std::move(module)));
  }
  // Appends another model's layers in place, their names prefixed with "<name>.". What it
  // also_return()s goes on to the next layer behind its last layer's outputs. Modules are shared,
  // not copied; those that are not made yet get their new full names and, unless the nested model
  // was given a seed of its own, this model's seed. Throws UsageError when it has no layers.
  Added add(std::string name, const Layers& nested);
  Added add(std::string name, const torch::nn::Sequential& sequential);
  Added append(Layer layer);

  // Has a parameter of one layer be that of another one, the same tensor, as an output layer that
  // shares its weight with the embedding: tie("head.weight", "embed.weight"). Both layers must have
  // been added; the second one owns the parameter, and it is listed under that name alone. It is
  // done when the first layer is made, which makes the second one too, and at once for a layer that
  // is there already. Throws UsageError for a layer that does not exist; what is wrong with a
  // parameter (its name, its shape) shows when the layer is made.
  //
  // A parameter of torch's own layers is found by its name. For other modules, name the member in
  // which the module keeps it: tie("head.table", "embed.weight", &HeadImpl::table).
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
  // One tensor in, one out; throws UsageError otherwise.
  at::Tensor forward(const at::Tensor& input) const;

  // Parameters and buffers under their unsplit names, "<layer>.<parameter>", in the order of the
  // layers.
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  std::vector<at::Tensor> parameters() const;
  std::int64_t parameter_count() const;

  void train();  // and eval(): what is not made yet will be in that mode
  void eval();
  void to(at::Device device);  // in place; makes and moves one layer after the other
  void zero_grad();
  std::size_t size() const;

 private:
  struct State;
  State& state();  // for changes: a copy of Layers shares the modules, never the wiring
  std::shared_ptr<State> state_;
};

}  // namespace trestle::nn
