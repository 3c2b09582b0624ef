#include "trestle/checkpoint/save.h"

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/state.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;

struct PlainModel {
  NamedTensors parameters, buffers;
};

// Keeps each tensor once, with its first name.
NamedTensors each_once(const NamedTensors& named) {
  std::set<const void*> seen;
  NamedTensors once;
  for (const auto& one : named)
    if (seen.insert(one.second.unsafeGetTensorImpl()).second) once.push_back(one);
  return once;
}

PlainModel plain(const nn::Layers& model) {
  return {each_once(model.named_parameters()), each_once(model.named_buffers())};
}

PlainModel plain(const torch::nn::Module& model) {
  PlainModel all;
  for (const auto& item : model.named_parameters())
    all.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) all.buffers.emplace_back(item.key(), item.value());
  return {each_once(all.parameters), each_once(all.buffers)};
}

void save_plain(const fs::path& folder, const PlainModel& model,
                const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state,
                const SaveOptions& options) {
  checkpoint::TrainingCheckpoint resume{.weights = model.parameters, .state = state};
  resume.weights.insert(resume.weights.end(), model.buffers.begin(), model.buffers.end());
  resume.optimizer =
      optim::optimizer_state(optimizer, optim::names_in(optimizer, model.parameters));
  if (options.gradients)
    for (const auto& [name, tensor] : model.parameters)
      if (tensor.grad().defined()) resume.gradients.emplace_back(name, tensor.grad());
  checkpoint::write_training_checkpoint(folder, resume);
}

void check_gradients(const NamedTensors& gradients, const PlainModel& model,
                     const fs::path& folder) {
  const std::map<std::string, at::Tensor> parameters(model.parameters.begin(),
                                                     model.parameters.end());
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor& parameter = parameters.at(name);
    if (parameter.sizes() != gradient.sizes())
      throw FormatError(text("the gradient of '", name, "' has shape ", gradient.sizes(),
                             ", but the parameter has shape ", parameter.sizes()),
                        {.file = folder.string()});
  }
}

void restore_gradients(const NamedTensors& gradients, const PlainModel& model) {
  const std::map<std::string, at::Tensor> parameters(model.parameters.begin(),
                                                     model.parameters.end());
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor& parameter = parameters.at(name);
    parameter.mutable_grad() =
        at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(gradient);
  }
}

checkpoint::TrainState load_plain(const fs::path& folder, const PlainModel& model,
                                  torch::optim::Optimizer& optimizer) {
  const checkpoint::SavedTraining saved(folder);
  NamedTensors weights = model.parameters;
  weights.insert(weights.end(), model.buffers.begin(), model.buffers.end());
  std::vector<checkpoint::StoredTensor> tensors;
  for (const auto& [name, tensor] : weights)
    tensors.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  saved.check_weights(tensors, checkpoint::SurplusTensors::Refused);
  const std::vector<std::string> names = optim::names_in(optimizer, model.parameters);
  std::vector<std::string> all;
  for (const auto& [name, tensor] : model.parameters) all.push_back(name);
  // All is read and checked before the first change.
  const NamedTensors state = saved.optimizer(names), gradients = saved.gradients(all);
  const auto staged = saved.stage_weights(weights, checkpoint::SurplusTensors::Refused);
  check_gradients(gradients, model, folder);
  optim::load_optimizer_state(optimizer, names, state);
  staged.write();
  restore_gradients(gradients, model);
  return saved.state();
}

}  // namespace

void save(const fs::path& folder, const nn::Layers& model, const torch::optim::Optimizer& optimizer,
          const checkpoint::TrainState& state, const SaveOptions& options) {
  save_plain(folder, plain(model), optimizer, state, options);
}

void save(const fs::path& folder, const torch::nn::Module& model,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state,
          const SaveOptions& options) {
  save_plain(folder, plain(model), optimizer, state, options);
}

checkpoint::TrainState load(const fs::path& folder, const nn::Layers& model,
                            torch::optim::Optimizer& optimizer) {
  return load_plain(folder, plain(model), optimizer);
}

checkpoint::TrainState load(const fs::path& folder, torch::nn::Module& model,
                            torch::optim::Optimizer& optimizer) {
  return load_plain(folder, plain(model), optimizer);
}

}  // namespace trestle
