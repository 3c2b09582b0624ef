#include "trestle/optim/fused.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <vector>

#include "trestle/optim/rmsprop_kernel.h"

namespace trestle::optim {

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

void rmsprop_on_cpu(at::Tensor weight, const at::Tensor& gradient, at::Tensor square,
                    const std::optional<at::Tensor>& buffer, double rate, double alpha,
                    double epsilon, double weight_decay, double momentum) {
  const RmspropNumbers numbers = {static_cast<float>(rate),         static_cast<float>(alpha),
                                  static_cast<float>(1 - alpha),    static_cast<float>(epsilon),
                                  static_cast<float>(weight_decay), static_cast<float>(momentum)};
  auto* w = weight.mutable_data_ptr<float>();
  const auto* g = gradient.const_data_ptr<float>();
  auto* s = square.mutable_data_ptr<float>();
  auto* b = buffer ? buffer->mutable_data_ptr<float>() : nullptr;
  constexpr std::int64_t grain = 1 << 16;
  at::parallel_for(0, weight.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    rmsprop_step(w + begin, g + begin, s + begin, b ? b + begin : nullptr, end - begin, numbers);
  });
}

// A registered operator, so that virtual devices dispatch it as every other operator.
auto rmsprop_operator() {
  static const auto handle = [] {
    static torch::Library library(torch::Library::DEF, "trestle", std::nullopt, __FILE__, __LINE__);
    library.def(
        "rmsprop_(Tensor(a!) weight, Tensor gradient, Tensor(b!) square, Tensor(c!)? buffer, "
        "float rate, float alpha, float epsilon, float weight_decay, float momentum) -> ()");
    library.impl("rmsprop_", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(rmsprop_on_cpu)));
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("trestle::rmsprop_", "")
        .typed<void(at::Tensor, const at::Tensor&, at::Tensor, const std::optional<at::Tensor>&,
                    double, double, double, double, double)>();
  }();
  return handle;
}

bool is_plain(const at::Tensor& parameter) {
  const bool device = parameter.is_cpu() || parameter.is_privateuseone();
  return device && parameter.scalar_type() == at::kFloat && parameter.layout() == at::kStrided &&
         parameter.is_non_overlapping_and_dense();
}

bool all_are_plain(const Optimizer& optimizer) {
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (!is_plain(parameter) || gradient.layout() != at::kStrided ||
          gradient.scalar_type() != at::kFloat) {
        return false;
      }
    }
  }
  return true;
}

// The tensor in the parameter's memory order, because kernels walk all arrays in parallel. A
// gradient may have another order, and so may the state of a weight whose memory format changed.
at::Tensor aligned(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.strides() == parameter.strides()) return tensor;
  return at::empty_like(parameter).copy_(tensor);
}

at::Tensor aligned_gradient(const at::Tensor& parameter) {
  return aligned(parameter.grad(), parameter);
}

at::Tensor call(const Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode with_grad(true);
  return closure();
}

template <class State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// Bumps the version, so that a backward through a graph that saved the old weight throws instead of
// computing a wrong gradient.
void note_change(const at::Tensor& parameter) { parameter.unsafeGetTensorImpl()->bump_version(); }

at::Tensor or_zeros(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() ? aligned(tensor, like) : at::zeros_like(like);
}

void adam_kernel(const torch::optim::AdamOptions& options, at::TensorList weights,
                 at::TensorList gradients, at::TensorList averages, at::TensorList squares,
                 at::TensorList max_squares, at::TensorList steps) {
  const auto& [beta1, beta2] = options.betas();
  at::_fused_adam_(weights, gradients, averages, squares, max_squares, steps, options.lr(), beta1,
                   beta2, options.weight_decay(), options.eps(), options.amsgrad(), false);
}
void adam_kernel(const torch::optim::AdamWOptions& options, at::TensorList weights,
                 at::TensorList gradients, at::TensorList averages, at::TensorList squares,
                 at::TensorList max_squares, at::TensorList steps) {
  const auto& [beta1, beta2] = options.betas();
  at::_fused_adamw_(weights, gradients, averages, squares, max_squares, steps, options.lr(), beta1,
                    beta2, options.weight_decay(), options.eps(), options.amsgrad(), false);
}

template <class State, class Options>
void adam_step(Optimizer& optimizer) {
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_of<State>(optimizer, parameter);
      state.step(state.step() + 1);
      state.exp_avg(or_zeros(state.exp_avg(), parameter));
      state.exp_avg_sq(or_zeros(state.exp_avg_sq(), parameter));
      if (options.amsgrad()) state.max_exp_avg_sq(or_zeros(state.max_exp_avg_sq(), parameter));
      std::vector<at::Tensor> max_squares;
      if (options.amsgrad()) max_squares.push_back(state.max_exp_avg_sq());
      // One parameter for each call: ranks that share a device then never hold its lock over two
      // parameters.
      adam_kernel(options, {parameter}, {aligned_gradient(parameter)}, {state.exp_avg()},
                  {state.exp_avg_sq()}, max_squares,
                  {at::scalar_tensor(static_cast<double>(state.step()), at::kFloat)});
      note_change(parameter);
    }
  }
}

}  // namespace

torch::Tensor FusedRmsprop::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = call(closure);
  bool centered = false;
  for (const OptimizerParamGroup& group : param_groups()) {
    centered |= static_cast<const torch::optim::RMSpropOptions&>(group.options()).centered();
  }
  if (centered || !all_are_plain(*this)) {
    RMSprop::step();
    return loss;
  }
  for (OptimizerParamGroup& group : param_groups()) {
    const auto& options = static_cast<const torch::optim::RMSpropOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_of<torch::optim::RMSpropParamState>(*this, parameter);
      state.step(state.step() + 1);
      state.square_avg(or_zeros(state.square_avg(), parameter));
      std::optional<at::Tensor> buffer;
      if (options.momentum() > 0) {
        state.momentum_buffer(or_zeros(state.momentum_buffer(), parameter));
        buffer = state.momentum_buffer();
      }
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      rmsprop_operator().call(parameter, aligned_gradient(parameter), state.square_avg(), buffer,
                              options.lr(), options.alpha(), options.eps(), options.weight_decay(),
                              options.momentum());
      note_change(parameter);
    }
  }
  return loss;
}

torch::Tensor FusedSgd::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = call(closure);
  if (!all_are_plain(*this)) {
    SGD::step();
    return loss;
  }
  for (OptimizerParamGroup& group : param_groups()) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      std::vector<at::Tensor> buffers;
      bool first = false;
      if (options.momentum() != 0) {
        auto& state = state_of<torch::optim::SGDParamState>(*this, parameter);
        first = !state.momentum_buffer().defined();
        state.momentum_buffer(first ? at::empty_like(parameter)
                                    : aligned(state.momentum_buffer(), parameter));
        buffers.push_back(state.momentum_buffer());
      }
      at::_fused_sgd_({parameter}, {aligned_gradient(parameter)}, buffers, options.weight_decay(),
                      options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                      /*maximize=*/false, first);
      note_change(parameter);
    }
  }
  return loss;
}

torch::Tensor FusedAdam::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = call(closure);
  if (all_are_plain(*this)) {
    adam_step<torch::optim::AdamParamState, torch::optim::AdamOptions>(*this);
  } else {
    Adam::step();
  }
  return loss;
}

torch::Tensor FusedAdamW::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = call(closure);
  if (all_are_plain(*this)) {
    adam_step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(*this);
  } else {
    AdamW::step();
  }
  return loss;
}

}  // namespace trestle::optim
