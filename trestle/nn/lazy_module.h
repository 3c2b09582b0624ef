#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/detail/tied_parameters.h"
#include "trestle/nn/parameter_slice.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace trestle::nn {

// The module of a layer: an existing one, or one that a factory creates when it is first needed.
// Copies refer to the same module. Use it like a pointer:
//
//   if (layer.module) layer.module->zero_grad();          // creates it if necessary
//   const bool is_made = layer.module.made() != nullptr;  // does not create it
//
// Creation is thread-safe and happens once. To call a member of the module, include
// <torch/nn/module.h>, which takes seconds to compile and is therefore not included here.
class LazyModule {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;

  LazyModule() = default;        // no module: the layer is a plain function
  LazyModule(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  LazyModule(std::shared_ptr<torch::nn::Module> module);  // NOLINT(google-explicit-constructor)
  explicit LazyModule(Factory factory);

  // Whether there is a module, created or not.
  explicit operator bool() const { return state_ != nullptr; }
  // Equal for two objects that refer to the same module; null without a module.
  const void* identity() const;

  // The module; null without one. The first call runs the factory, on the CPU, with gradients
  // enabled, and with random numbers that depend only on the key. Throws the factory's exception
  // with the layer's name added, and StateError if the factory needs the module that it is
  // creating.
  std::shared_ptr<torch::nn::Module> make() const;
  std::shared_ptr<torch::nn::Module> made() const;  // null if it was not created yet
  // Creates the module temporarily: when the returned pointer is destroyed, the module is discarded
  // and its memory freed. Returns null and changes nothing if the module exists already.
  std::shared_ptr<void> make_temporarily() const;
  torch::nn::Module* operator->() const { return make().get(); }

  // The key of a factory's random numbers: a model's seed and the layer's full name. Has no effect
  // on an existing module.
  void set_key(std::uint64_t seed, std::string full_name) const;
  std::uint64_t seed() const;  // 0 without a module

  // `slicer` replaces parameters and buffers by this rank's slices of them, and returns their
  // places. It is called now, or whenever the module is created, before parameters are tied.
  using Slicer = std::function<ParameterSlices(torch::nn::Module&)>;
  void slice(Slicer slicer) const;
  // The places that slice() returned. Creates the module if necessary.
  ParameterSlices slices() const;

  // Makes a parameter of this module a parameter of another one: now, or when this module is
  // created, which creates the other one too. Throws UsageError if the two modules are the same, or
  // if the other one is tied to this one directly or indirectly, and as replace_parameter() does.
  struct Tie;
  void add_tie(Tie tie) const;
  std::vector<std::string> tied_parameters() const;  // names of the parameters owned by others
  // Replaces the tensor of a parameter that is tied, in the created module: by a copy of the
  // owner's tensor, for a pipeline's stage, or by the owner's tensor. Throws StateError if this
  // module has no such tie or was not created.
  void replace_tied(const std::string& parameter, const at::Tensor& tensor) const;

  // Sets training or evaluation mode: now, or when the module is created.
  void train() const { set_mode(Mode::Train); }
  void eval() const { set_mode(Mode::Evaluate); }

 private:
  enum class Mode { Train, Evaluate };
  struct State;
  void set_mode(Mode mode) const;
  bool needs(const LazyModule& other) const;
  std::shared_ptr<State> state_;
};

struct LazyModule::Tie {
  std::string parameter;  // of this module
  LazyModule source;
  std::string source_parameter;
  FindMember find_member = {};
};

}  // namespace trestle::nn
