#include "trestle/train/example_check.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/nn/training_mode_scope.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/find_data.h"
#include "trestle/train/setup.h"
#include "trestle/train/task.h"

namespace trestle::train {

namespace {

// One example as a batch.
struct Probe {
  at::Tensor input, target;
};

// Nets with five halvings need sides that are multiples of 32.
constexpr std::int64_t small_side = 96;

bool is_large(const at::Tensor& input) {
  return input.dim() == 3 && input.size(1) * input.size(2) > 4 * small_side * small_side;
}

// The target that a loss is most likely to refuse.
at::Tensor worst_of(const at::Tensor& target) {
  const at::Tensor least = target.min();
  const bool negative = target.scalar_type() == at::kLong && least.item<std::int64_t>() < 0 &&
                        least.item<std::int64_t>() != nn::ignored_target;
  return negative ? least : target.max();
}

// A copy: the layers and the loss may work in place.
Probe whole(const data::Sample& example) {
  return {example.input.unsqueeze(0).clone(), example.target.unsqueeze(0).clone()};
}

Probe small(const data::Sample& example) {
  Probe probe{at::zeros({1, example.input.size(0), small_side, small_side}),
              example.target.unsqueeze(0).clone()};
  const bool dense = example.target.dim() == 2 && example.target.numel() > 0 &&
                     example.target.sizes() == example.input.sizes().slice(1);
  if (dense) probe.target = worst_of(example.target).expand({1, small_side, small_side}).clone();
  return probe;
}

void run(const recipe::Recipe& recipe, const nn::Layers& model, const nn::Loss& loss,
         const Probe& probe) {
  with_inputs_named(recipe, probe.input,
                    [&] { loss.value(model.forward(probe.input), probe.target); });
}

std::optional<data::Sample> first_readable(const Examples& examples) {
  constexpr std::size_t most = 16;
  for (std::size_t i = 0; i < std::min(examples.indices.size(), most); ++i) {
    try {
      return examples.dataset->get(examples.indices[i]);
    } catch (const Error&) {  // the check has listed it
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace

void check_example(const recipe::Recipe& recipe, const nn::Layers& model, const nn::Loss& loss,
                   const data::Sample& example) {
  if (!example.input.defined() || !example.target.defined()) return;
  const at::NoGradGuard no_grad;
  // Batch norms take one example then.
  const nn::TrainingModeScope evaluation(model.graph().layers,
                                         nn::TrainingModeScope::Mode::Evaluate);
  if (is_large(example.input)) {
    try {
      return run(recipe, model, loss, small(example));
    } catch (const std::exception&) {
      // A net for pictures of one size refuses others; the real size decides.
    }
  }
  run(recipe, model, loss, whole(example));
}

std::string problem_of_model(const recipe::Recipe& recipe, const models::OwnModels& models,
                             const UserParts& own) {
  recipe::Recipe found = recipe;
  OpenedData opened;
  try {
    found.data = data_that_are_there(recipe, own);
    opened = find_data_set(recipe.data.name, own).open(found);
  } catch (const Error&) {  // the check has listed it
    return "";
  }
  try {
    check_examples(found, opened, own);
    const auto example = first_readable(opened.training);
    if (!example) return "";
    check_channels(found, example->input.unsqueeze(0));
    const nn::Layers model = make_model(found, models);
    for (const auto& layer : model.graph().layers) layer.to(at::kCPU);
    check_example(found, model, loss_of(found, own), *example);
  } catch (const UsageError& error) {
    return error.what();
  } catch (const Error&) {  // a file that the check has listed
    return "";
  }
  return "";
}

}  // namespace trestle::train
