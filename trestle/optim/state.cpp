#include "trestle/optim/state.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::optim {

namespace {

using torch::optim::AdamParamState;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;
using torch::optim::RMSpropParamState;
using torch::optim::SGDParamState;

// visit_fields(state, visitor) calls visitor(name, field, required) for every field of a state.
template <class Visitor>
void visit_fields(SGDParamState& state, Visitor&& visitor) {
  visitor("momentum_buffer", state.momentum_buffer(), false);
}
template <class Visitor>
void visit_fields(RMSpropParamState& state, Visitor&& visitor) {
  visitor("step", state.step(), true);
  visitor("square_avg", state.square_avg(), true);
  visitor("momentum_buffer", state.momentum_buffer(), false);
  visitor("grad_avg", state.grad_avg(), false);
}
template <class AdamState, class Visitor>
requires(std::is_same_v<AdamState, AdamParamState> ||
         std::is_same_v<AdamState, AdamWParamState>) void visit_fields(AdamState& state,
                                                                       Visitor&& visitor) {
  visitor("step", state.step(), true);
  visitor("exp_avg", state.exp_avg(), true);
  visitor("exp_avg_sq", state.exp_avg_sq(), true);
  visitor("max_exp_avg_sq", state.max_exp_avg_sq(), false);
}

// Calls action(State*) with a null pointer of the state type of this optimizer.
template <class Action>
auto with_state_type(const Optimizer& optimizer, Action&& action) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return action((SGDParamState*)nullptr);
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return action((AdamParamState*)nullptr);
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) {
    return action((AdamWParamState*)nullptr);
  }
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer)) {
    return action((RMSpropParamState*)nullptr);
  }
  throw UsageError("only the state of sgd, adam, adamw and rmsprop can be saved by name");
}

std::vector<at::Tensor> parameters_of(const Optimizer& optimizer,
                                      const std::vector<std::string>& names) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  if (parameters.size() != names.size()) {
    throw UsageError(text("the optimizer holds ", parameters.size(), " parameters, and ",
                          names.size(), " names were given"));
  }
  return parameters;
}

using Fields = std::map<std::string, at::Tensor>;

// Builds one parameter's state from its fields.
template <class State>
std::unique_ptr<OptimizerParamState> build(const at::Tensor& parameter, const std::string& name,
                                           Fields fields) {
  auto state = std::make_unique<State>();
  visit_fields(*state, [&](const std::string& field, auto& target, bool required) {
    const auto found = fields.find(field);
    if (found == fields.end()) {
      if (required) throw FormatError(text("optimizer state of '", name, "' lacks '", field, "'"));
      return;
    }
    at::Tensor value = found->second;
    fields.erase(found);
    if constexpr (std::is_same_v<std::decay_t<decltype(target)>, std::int64_t>) {
      if (value.numel() != 1)
        throw FormatError(text("optimizer state '", name, ".", field, "' is not one number"));
      target = value.item<std::int64_t>();
    } else {
      if (value.sizes() != parameter.sizes()) {
        throw FormatError(text("optimizer state '", name, ".", field, "' is [",
                               join(value.sizes(), ", "), "], the parameter is [",
                               join(parameter.sizes(), ", "), "]"));
      }
      target = at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(value);
    }
  });
  if (!fields.empty()) {
    throw FormatError(text("optimizer state '", name, ".", fields.begin()->first,
                           "' does not belong to this optimizer"),
                      {.hint = "Resume with the optimizer that saved the state."});
  }
  return state;
}

}  // namespace

std::vector<std::string> names_in(const Optimizer& optimizer, const NamedTensors& named) {
  std::map<const void*, std::string> known;
  for (const auto& [name, tensor] : named) known.try_emplace(tensor.unsafeGetTensorImpl(), name);
  std::vector<std::string> names;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found == known.end())
        throw UsageError(text("the optimizer's parameter number ", names.size(), ", [",
                              join(parameter.sizes(), ", "), "], is not a parameter of the model"),
                         {.hint = "Create the optimizer from the model's parameters()."});
      names.push_back(found->second);
    }
  return names;
}

NamedTensors optimizer_state(const Optimizer& optimizer, const std::vector<std::string>& names) {
  const std::vector<at::Tensor> parameters = parameters_of(optimizer, names);
  NamedTensors all;
  with_state_type(optimizer, [&]<class State>(State*) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto state = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;  // it never had a gradient
      visit_fields(static_cast<State&>(*state->second), [&](const char* field, auto& value, bool) {
        const std::string name = names[i] + "." + field;
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::int64_t>) {
          all.emplace_back(name, at::scalar_tensor(value, at::kLong));
        } else if (value.defined()) {
          all.emplace_back(name, value);
        }
      });
    }
  });
  return all;
}

void load_optimizer_state(Optimizer& optimizer, const std::vector<std::string>& names,
                          const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = parameters_of(optimizer, names);
  std::map<std::string, Fields> fields;
  for (const auto& [name, tensor] : state) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos)
      throw FormatError(text("optimizer state '", name, "' has no field name"));
    fields[name.substr(0, dot)][name.substr(dot + 1)] = tensor;
  }
  std::vector<std::unique_ptr<OptimizerParamState>> built(parameters.size());
  with_state_type(optimizer, [&]<class State>(State*) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = fields.find(names[i]);
      if (found != fields.end()) built[i] = build<State>(parameters[i], names[i], found->second);
    }
  });
  optimizer.state().clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (built[i]) optimizer.state()[parameters[i].unsafeGetTensorImpl()] = std::move(built[i]);
  }
}

void move_state(Optimizer& optimizer) {
  with_state_type(optimizer, [&](auto* type) {
    using State = std::remove_pointer_t<decltype(type)>;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end()) continue;
        visit_fields(static_cast<State&>(*found->second), [&](const auto&, auto& field, bool) {
          if constexpr (std::is_same_v<std::decay_t<decltype(field)>, at::Tensor>) {
            if (field.defined()) field = field.to(parameter.device());
          }
        });
      }
    }
  });
}

}  // namespace trestle::optim
