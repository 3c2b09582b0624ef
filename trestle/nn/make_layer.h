#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "trestle/nn/detail/signature.h"
#include "trestle/nn/layer.h"

// A layer from any torch module, or any function of tensors.
//
//   make_layer("conv", torch::nn::Conv2d(1, 8, 3));                    // an existing module
//   make_layer("flatten", [](at::Tensor x) { return x.flatten(1); });  // a function
//   make_layer("conv", [] { return torch::nn::Conv2d(1, 8, 3); });     // created when it is needed
//
// A module's forward() must be one function, or take and return one tensor, as that of
// torch::nn::Sequential. Its parameters are at::Tensor or std::optional<at::Tensor>. Other
// std::optional parameters without a default are left empty. After these it may have any parameters
// with a default. An argument may be omitted if its parameter is optional or has a default (a GRU's
// `hx`). Arguments after a non-tensor parameter with a default cannot be given. It returns tensors,
// by themselves or in a std::tuple or std::pair, nested ones too (an LSTM's three), or a
// std::vector of tensors.
namespace trestle::nn {

namespace detail {

// The accepted forms of a module: a holder, a std::shared_ptr, or an object by value.
template <class T>
struct AsModule {
  using Impl = void;
};
template <class T>
requires std::is_base_of_v<torch::nn::Module, T>
struct AsModule<T> {
  using Impl = T;
  static std::shared_ptr<T> pointer(T module) { return std::make_shared<T>(std::move(module)); }
};
template <class T>
requires std::is_base_of_v<torch::nn::Module, T>
struct AsModule<std::shared_ptr<T>> {
  using Impl = T;
  static std::shared_ptr<T> pointer(std::shared_ptr<T> module) { return module; }
};
template <class T>
requires requires { typename T::ContainedType; }
struct AsModule<T> {
  using Impl = typename T::ContainedType;
  static std::shared_ptr<Impl> pointer(const T& holder) { return holder.ptr(); }
};

template <class T>
concept ModuleLike = !std::is_void_v<typename AsModule<T>::Impl>;
template <class T>
concept ModuleFactory =
    !ModuleLike<T> && std::invocable<T&> && ModuleLike<Bare<std::invoke_result_t<T&>>>;

template <class Impl>
struct Forward {  // a module's forward() as a callable
  Impl* module;
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const requires requires(Impl& impl) {
    impl.forward(std::forward<Arguments>(arguments)...);
  }
  { return module->forward(std::forward<Arguments>(arguments)...); }
};

template <class Impl>
struct ForwardOf : Signature<Forward<Impl>, at::Tensor, at::Tensor> {
  static_assert(
      requires(Impl & module, at::Tensor x) {
        { module.forward(x) } -> std::convertible_to<at::Tensor>;
      },
      "a module's forward() must be one function, neither overloaded nor a template, or map one "
      "tensor to one tensor; wrap it in a lambda, or in a module with such a forward()");
};
template <class Impl>
requires requires { &Impl::forward; }
struct ForwardOf<Impl> : SignatureOf<Forward<Impl>, decltype(&Impl::forward)> {};

template <class Impl>
Values call_module(Impl& module, const Values& values) {
  Forward<Impl> forward{&module};
  return ForwardOf<Impl>::call(forward, values);
}

}  // namespace detail

template <detail::ModuleLike Module>
Layer make_layer(std::string name, Module module) {
  auto pointer = detail::AsModule<Module>::pointer(std::move(module));
  using Impl = typename decltype(pointer)::element_type;
  using Forward = detail::ForwardOf<Impl>;
  auto call = [pointer](const Values& values) { return detail::call_module(*pointer, values); };
  const std::shared_ptr<torch::nn::Module> base = pointer;
  return {std::move(name), base, call, Forward::arguments, Forward::required, Forward::outputs};
}

// A function without arguments that returns a module. Its return type gives the layer's arguments
// and outputs. It is called when the module is first needed (lazy_module.h).
template <detail::ModuleFactory Factory>
Layer make_layer(std::string name, Factory factory) {
  using AsModule = detail::AsModule<detail::Bare<std::invoke_result_t<Factory&>>>;
  using Impl = typename AsModule::Impl;
  using Forward = detail::ForwardOf<Impl>;
  // make() returns the base class; the call needs the module's own class.
  auto made = std::make_shared<std::shared_ptr<Impl>>();
  const LazyModule module([made, factory = std::move(factory)]() mutable {
    *made = AsModule::pointer(factory());
    return std::shared_ptr<torch::nn::Module>(*made);
  });
  module.set_key(0, name);  // until a model gives it its own seed and full name
  auto call = [module, made](const Values& values) {
    module.make();
    return detail::call_module(**made, values);
  };
  return {std::move(name), module, call, Forward::arguments, Forward::required, Forward::outputs};
}

// A function that is not a template.
template <class Function>
Layer make_layer(std::string name, Function function) {
  using Forward = detail::FunctionOf<Function>;
  auto call = [function = std::move(function)](const Values& values) mutable {
    return Forward::call(function, values);
  };
  return {std::move(name), nullptr, call, Forward::arguments, Forward::required, Forward::outputs};
}

}  // namespace trestle::nn
