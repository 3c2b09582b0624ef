#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/data_parallel/data_parallel_replicas.h"
#include "trestle/data_parallel/scatter_gather.h"
#include "trestle/device/detail/visit_tensors.h"
#include "trestle/device/device.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/make_layer.h"

// One model on several devices of one process, each with a share of the batch:
// torch.nn.DataParallel of Python. C++ has only torch::nn::parallel::data_parallel(), which clones
// the module in each call, and takes and returns one tensor.
namespace trestle {

struct DataParallelOptions {
  std::optional<Device> output_device = {};  // where outputs are gathered; default: the first
  std::int64_t dim = 0;                      // the samples' dimension, in inputs and outputs
};

namespace data_parallel {

// The model that DataParallel holds: a module's Impl, or nn::Layers.
template <class T>
struct ModelOf;
template <nn::detail::ModuleLike T>
struct ModelOf<T> {
  using Model = typename nn::detail::AsModule<T>::Impl;
  static std::shared_ptr<Model> pointer(T module) {
    return nn::detail::AsModule<T>::pointer(std::move(module));
  }
};
template <>
struct ModelOf<nn::Layers> {
  using Model = nn::Layers;
  static std::shared_ptr<Model> pointer(nn::Layers layers) {
    return std::make_shared<nn::Layers>(std::move(layers));
  }
};
template <class T>
concept Factory = !nn::detail::ModuleLike<T> && std::invocable<T&> && requires {
  typename ModelOf<nn::detail::Bare<std::invoke_result_t<T&>>>::Model;
};
template <Factory T>
struct ModelOf<T> : ModelOf<nn::detail::Bare<std::invoke_result_t<T&>>> {};

// An argument with tensors is copied for each replica. All replicas share any other argument.
template <class T>
using Argument = std::conditional_t<contains_tensors<T>, T, const T&>;

template <class T>
T gather_outputs(std::vector<std::optional<T>>& outputs, at::Device device, std::int64_t dim) {
  static_assert(contains_only_tensors<T>,
                "DataParallel cannot gather what forward() returns: return tensors, "
                "or std::tuple, std::pair, std::vector, std::optional or std::map of tensors");
  std::vector<std::vector<at::Tensor>> parts(outputs.size());
  std::vector<std::vector<std::size_t>> made_of(outputs.size());
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    auto on_tensor = [&](const at::Tensor& tensor) { parts[r].push_back(tensor); };
    auto on_part = [&](std::size_t part) { made_of[r].push_back(part); };
    visit_tensors(std::as_const(*outputs[r]), on_tensor, on_part);
    if (made_of[r] != made_of[0]) {
      throw UsageError("the replicas' outputs contain different numbers of tensors",
                       {.hint = "The number of tensors must not depend on the samples."});
    }
  }
  const auto joined = gather(parts, device, dim);
  T result = std::move(*outputs[0]);
  std::size_t next = 0;
  visit_tensors(result, [&](at::Tensor& tensor) { tensor = joined[next++]; });
  return result;
}

}  // namespace data_parallel

// The replicas are made once. The first one is the given module itself, moved to the first device
// in place: its parameters keep their tensor objects, and an optimizer of them trains all replicas.
// Before each call the other replicas copy what has changed in it.
//
//   Net net;                                             // derives from torch::nn::Cloneable
//   trestle::DataParallel parallel(net, trestle::parse_devices("virtual:2"));
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   at::Tensor loss = torch::mse_loss(parallel(x), y);   // x and y on any device
//   loss.backward();    // net->parameters() get the gradients of the whole batch
//   optimizer.step();
//
// A module that cannot be cloned is given as a function that makes it, called once for each device:
// DataParallel([] { return Net(); }, devices), then parallel.module(). nn::Layers are given as a
// function too.
//
// A call passes its arguments to forward(). Tensors, also those in std::optional, std::vector,
// std::array, std::tuple, std::pair, std::map and std::unordered_map, however nested, are split
// into rows as torch.chunk() does. Any other argument is passed to each replica as it is, so
// forward() must not write to it. With fewer rows than devices some replicas do not run. All
// replicas run if no argument contains a tensor. Outputs are concatenated in the same order, on
// output_device. One without dimensions, such as a loss, becomes one element for each replica. With
// one device the call is the module's.
//
// Replicas run in threads of their own, in the caller's grad mode and autocast. An exception keeps
// its type and names the device where it was thrown; if several replicas throw, the first replica's
// is thrown. In training mode each call draws one number from torch's generator, which seeds each
// replica's dropout.
//
// As in Python, batch norms normalise each replica's share by itself, and the first replica's
// running statistics are kept. Other changes that forward() makes in the other replicas are lost.
// train(), eval() and requires_grad of the module, or of a child of it, apply to all replicas.
//
// A parameter counts as changed when its version changed, or if it has, or had, a gradient. After
// any other kind of write (variable_data(), a raw pointer), call refresh().
//
// Throws UsageError without a device, where the module cannot be copied, with a hint, and where the
// arguments split into different numbers of rows. One call at a time. A call inside a backward runs
// the replicas one after the other.
template <class Model>
class DataParallel {
 public:
  template <class T>
  DataParallel(T module, const std::vector<Device>& devices, DataParallelOptions options = {})
      : options_(std::move(options)) {
    static_assert(!std::is_same_v<T, nn::Layers>,
                  "nn::Layers cannot be copied: give DataParallel a function that makes them");
    if (devices.empty()) throw UsageError("DataParallel needs at least one device");
    make(std::move(module), devices);
    std::vector<data_parallel::ReplicaView> views;
    for (const auto& model : models_) views.push_back(data_parallel::view_of(model));
    std::vector<at::Device> places;
    for (const Device& device : devices) places.push_back(device.torch);
    replicas_ = std::make_shared<data_parallel::Replicas>(std::move(views), std::move(places));
  }

  // Returns what the module's forward() returns.
  template <class... Arguments>
  auto operator()(const Arguments&... arguments) {
    return forward(arguments...);
  }
  template <class... Arguments>
  auto forward(const Arguments&... arguments) {
    using Output = nn::detail::Bare<decltype(std::declval<Model&>().forward(
        std::declval<data_parallel::Argument<Arguments>>()...))>;
    std::vector<at::Tensor> tensors;
    const auto collect = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
    (visit_tensors(arguments, collect), ...);
    const auto& devices = replicas_->devices();
    const auto pieces = sizeof...(Arguments) == 0
                            ? data_parallel::Scattered{.of = {{}}}
                            : data_parallel::scatter(tensors, devices, options_.dim);
    std::vector<std::optional<Output>> outputs(pieces.of.size());
    replicas_->run(outputs.size(), [&](std::size_t r) {
      std::tuple<data_parallel::Argument<Arguments>...> own(arguments...);
      std::size_t next = 0;
      visit_tensors(own, [&](at::Tensor& tensor) { tensor = pieces.of[r][next++]; });
      outputs[r].emplace(call(*models_[r], own, std::index_sequence_for<Arguments...>()));
    });
    const at::Device place = options_.output_device ? options_.output_device->torch : devices[0];
    if (devices.size() == 1 && place == devices[0]) return std::move(*outputs[0]);
    return data_parallel::gather_outputs(outputs, place, options_.dim);
  }

  // The first replica: the user's module.
  const std::shared_ptr<Model>& module() const { return models_[0]; }
  auto parameters() const { return models_[0]->parameters(); }
  auto named_parameters() const { return models_[0]->named_parameters(); }
  auto named_buffers() const { return models_[0]->named_buffers(); }
  void train() { models_[0]->train(); }
  void eval() { models_[0]->eval(); }
  void zero_grad() { models_[0]->zero_grad(); }

  // Copies the first replica's values to all replicas now.
  void refresh() { replicas_->refresh(); }
  // All replicas, the first one first; read only.
  const std::vector<std::shared_ptr<Model>>& replicas() const { return models_; }

 private:
  template <class T>
  void make(T module, const std::vector<Device>& devices) {
    using Maker = data_parallel::ModelOf<T>;
    if constexpr (data_parallel::Factory<T>) {
      models_.push_back(Maker::pointer(module()));
      for (std::size_t r = 1; r < devices.size(); ++r)
        data_parallel::run_apart([&] { models_.push_back(Maker::pointer(module())); });
    } else {
      models_.push_back(Maker::pointer(std::move(module)));
      for (std::size_t r = 1; r < devices.size(); ++r) {
        models_.push_back(
            std::dynamic_pointer_cast<Model>(data_parallel::clone(*models_[0], devices[r].torch)));
        if (models_.back() == nullptr) data_parallel::refuse_type(*models_[0]);
      }
    }
  }

  template <class Own, std::size_t... I>
  static auto call(Model& model, Own& own, std::index_sequence<I...>) {
    return model.forward(std::forward<std::tuple_element_t<I, Own>>(std::get<I>(own))...);
  }

  DataParallelOptions options_;
  std::vector<std::shared_ptr<Model>> models_;
  std::shared_ptr<data_parallel::Replicas> replicas_;
};

template <class T>
DataParallel(T, std::vector<Device>, DataParallelOptions = {})
    -> DataParallel<typename data_parallel::ModelOf<T>::Model>;

}  // namespace trestle
