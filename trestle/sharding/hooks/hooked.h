#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "trestle/device/detail/visit_tensors.h"

// Units inside a torch module, for ShardLevel::Parameters. forward() of a libtorch module is not
// virtual, so a Sharded cannot run code before and after it. In a Hooked module it can.
namespace trestle {

namespace sharding {

// Called by a Hooked module around its forward.
class UnitHook {
 public:
  using Change = std::function<void(at::Tensor&)>;
  using Tensors = std::function<void(const Change&)>;  // calls the Change for each tensor
  UnitHook() = default;
  UnitHook(const UnitHook&) = delete;
  UnitHook& operator=(const UnitHook&) = delete;
  virtual ~UnitHook() = default;
  // The result lives until the forward returns or throws.
  virtual std::shared_ptr<void> begin(const Tensors& inputs) = 0;
  virtual void end(const std::shared_ptr<void>& call, const Tensors& outputs) = 0;
};

// The base of every Hooked, whatever its module.
class HookedModule {
 public:
  HookedModule() = default;
  HookedModule(const HookedModule&) {}  // a copy has no hook
  HookedModule& operator=(const HookedModule&) { return *this; }
  virtual ~HookedModule() = default;
  virtual const std::type_info& unit_type() const = 0;  // of the module without Hooked
  std::shared_ptr<UnitHook> unit_hook() const { return unit_hook_.lock(); }
  void set_unit_hook(std::weak_ptr<UnitHook> hook) { unit_hook_ = std::move(hook); }

 private:
  std::weak_ptr<UnitHook> unit_hook_;  // expires with its Sharded
};

namespace detail {

template <class Member>
struct PlainSignature;
template <class Class, class Output, class... Inputs>
struct PlainSignature<Output (Class::*)(Inputs...)> {
  using type = Output(Inputs...);
};
template <class Class, class Output, class... Inputs>
struct PlainSignature<Output (Class::*)(Inputs...) const> {
  using type = Output(Inputs...);
};

// A forward() that is overloaded or a template, such as torch::nn::Sequential's, maps one tensor to
// one tensor.
template <class Impl>
struct ForwardSignature {
  using type = at::Tensor(const at::Tensor&);
};
template <class Impl>
requires requires { &Impl::forward; }
struct ForwardSignature<Impl> : PlainSignature<decltype(&Impl::forward)> {};

// An argument that contains tensors is copied, so that they can be replaced. Other arguments are
// passed through.
template <class Input>
using HeldInput = std::conditional_t<contains_tensors<std::remove_cvref_t<Input>>,
                                     std::remove_cvref_t<Input>, Input&&>;

// Copies parameters, buffers and training modes to a module of the same structure.
void copy_module(const torch::nn::Module& from, torch::nn::Module& to,
                 const std::optional<at::Device>& device);

}  // namespace detail
}  // namespace sharding

// A module that is a unit where a Sharded around it shards parameters: its parameters, without
// those of Hooked modules inside it, are gathered only for its forward and its backward. It has the
// module's names, constructors and forward(), and is used as the module is:
//
//   struct NetImpl : torch::nn::Module {
//     NetImpl() {
//       for (int i = 0; i < 12; ++i) blocks->push_back(trestle::HookedHolder<BlockImpl>(64));
//       register_module("blocks", blocks);
//       head = register_module("head", torch::nn::Linear(64, 10));
//     }
//     at::Tensor forward(const at::Tensor& x) { return head(blocks->forward(x)); }
//     torch::nn::Sequential blocks;
//     torch::nn::Linear head{nullptr};
//   };
//   trestle::ShardedModule<NetImpl> net(std::make_shared<NetImpl>(), mesh, trestle::fsdp());
//
// Each block is a unit. All parameters outside of blocks are one more unit, gathered from the
// beginning of a forward to the end of the backward. Without a Sharded around it, and at other
// levels, it is the plain module.
//
// forward() must be one function, or map one tensor to one tensor. It takes and returns tensors by
// value or const reference, directly or in the containers of device/detail/visit_tensors.h, and
// values of any other type. Tensors inside other types are not found; a unit whose outputs are all
// of such types is a UsageError. A direct call must pass arguments that have defaults too, because
// C++ hides defaults from templates. Its parameters must not be used outside of its forward. Units
// must run in the same order in every step. One that runs twice is gathered twice.
template <class Impl, class Signature = typename sharding::detail::ForwardSignature<Impl>::type>
class Hooked;

template <class Impl, class Output, class... Inputs>
class Hooked<Impl, Output(Inputs...)> : public Impl, public sharding::HookedModule {
  static_assert(!std::is_reference_v<Output>, "a Hooked module's forward() returns a value");
  static_assert(((!std::is_lvalue_reference_v<Inputs> ||
                  std::is_const_v<std::remove_reference_t<Inputs>>)&&...),
                "a Hooked module's forward() takes its inputs by value or by const reference");

 public:
  using Impl::Impl;

  Output forward(Inputs... inputs) {
    const auto hook = unit_hook();
    if (!hook) return Impl::forward(std::forward<Inputs>(inputs)...);
    std::tuple<sharding::detail::HeldInput<Inputs>...> held(std::forward<Inputs>(inputs)...);
    const auto call = hook->begin([&](const sharding::UnitHook::Change& change) {
      std::apply([&](auto&... each) { (visit_tensors(each, change), ...); }, held);
    });
    const auto run = [&]() -> Output {
      return std::apply(
          [this](auto&... each) -> Output {
            return this->Impl::forward(static_cast<Inputs&&>(each)...);
          },
          held);
    };
    if constexpr (std::is_void_v<Output>) {
      run();
      hook->end(call, [](const sharding::UnitHook::Change&) {});
    } else {
      Output output = run();
      hook->end(call,
                [&](const sharding::UnitHook::Change& change) { visit_tensors(output, change); });
      return output;
    }
  }

  const std::type_info& unit_type() const override { return typeid(Impl); }

  // As the module's clone(). Cloneable's would return a module that is not Hooked.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    if constexpr (requires(Impl & made, const Impl& own) {
                    made.push_back(std::string(), own.begin()->clone(device));
                  }) {
      const auto copy = std::make_shared<Hooked>();
      auto part = this->begin();
      for (const auto& child : this->named_children())
        copy->push_back(child.key(), (part++)->clone(device));
      sharding::detail::copy_module(*this, *copy, device);
      return copy;
    } else if constexpr (requires(Impl & made) { made.reset(); }) {
      const auto copy = std::make_shared<Hooked>(*this);
      static_cast<torch::nn::Module&>(*copy) = torch::nn::Module(this->name());
      copy->reset();
      sharding::detail::copy_module(*this, *copy, device);
      return copy;
    } else {
      return Impl::clone(device);
    }
  }
};

// The holder, as TORCH_MODULE makes it: HookedHolder<torch::nn::LinearImpl>(4, 4).
template <class Impl>
using HookedHolder = torch::nn::ModuleHolder<Hooked<Impl>>;

}  // namespace trestle
