#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/optim/factory.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Is the parameter "down1.conv1.weight" meant? A pattern is its name or the beginning of it up to a
// dot ("down1", "down1.conv1"), and a * in it stands for any characters: "down*", "*.bias".
bool names_parameter(std::string_view pattern, std::string_view parameter);

// Throws UsageError for a pattern of [optimizer] that names none of these parameters, in any of the
// three lists, and where nothing is left to train.
void check_parameter_names(const recipe::Recipe& recipe, const NamedTensors& all);

// Takes what `frozen` in [optimizer] names out of the training: no gradients. Throws as above.
void freeze_parameters(const recipe::Recipe& recipe, Pipeline& pipeline);
// The same for some of the parameters, whose names are not checked: those of one rank.
void freeze_named(const recipe::Recipe& recipe, const NamedTensors& parameters);

// What is trained of a stage, in groups of one weight decay and one learning rate.
struct StageGroups {
  std::vector<optim::ParameterGroup> groups;
  std::vector<std::string> names;  // of all of them, in that order
};
// `parameters`: what the stage's optimizer steps, parameters or shards of them; `whole`: the model's
// parameters by the same names, whose dimensions and requires_grad decide.
StageGroups groups_of(const recipe::Recipe& recipe, const NamedTensors& whole,
                      const NamedTensors& parameters);

}  // namespace trestle::train
