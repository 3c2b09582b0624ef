#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/tie.h"

namespace trestle::nn {

// The module of a layer: one that is there already, or one that a factory makes when it is first
// needed. Copies stand for the same module. It is used like a pointer:
//
//   if (layer.module) layer.module->zero_grad();          // makes it, if nobody has before
//   const bool is_made = layer.module.made() != nullptr;  // asks without making it
//
// Making is safe from any thread and happens once. Whoever calls a member of the module includes
// <torch/nn/module.h>, which takes seconds to compile and is therefore not included here.
class LazyModule {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;

  LazyModule() = default;        // no module: the layer is a plain function
  LazyModule(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  LazyModule(std::shared_ptr<torch::nn::Module> module);  // NOLINT(google-explicit-constructor)
  explicit LazyModule(Factory factory);

  // Whether there is a module, made or not.
  explicit operator bool() const { return state_ != nullptr; }
  // The same for two that stand for the same module; null where there is none.
  const void* identity() const;

  // The module; null where there is none. The first call runs the factory, on the CPU, with
  // gradients enabled, and with random numbers that depend on the key alone. Throws what the
  // factory throws, with the layer's name, and StateError where the factory asks for the very
  // module that it is to make.
  std::shared_ptr<torch::nn::Module> make() const;
  std::shared_ptr<torch::nn::Module> made() const;  // null where it has not been made yet
  // Makes it until what is returned is let go; then it has not been made again, and its memory is free.
  // Null, and nothing changes, where it was made before.
  std::shared_ptr<void> make_for_now() const;
  torch::nn::Module* operator->() const { return make().get(); }

  // What a factory's random numbers depend on: a model's seed and the layer's full name. Without
  // effect on a module that is made.
  void set_key(std::uint64_t seed, std::string full_name) const;
  std::uint64_t seed() const;  // 0 where there is no module

  // Has a parameter of this module be a parameter of another one: now, or as soon as it is made,
  // which makes the other one too. Throws UsageError where the two modules are the same, or the
  // other one is tied to this, by however many steps, and as replace_parameter() does.
  struct Tie;
  void add_tie(Tie tie) const;
  std::vector<std::string> tied_parameters() const;  // the names here that belong to others

  // Training or evaluation mode: now, or as soon as it is made.
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
