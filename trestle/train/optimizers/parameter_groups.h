#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/optim/factory.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Whether a pattern names the parameter "down1.conv1.weight". A pattern is the name or its
// beginning up to a dot ("down1", "down1.conv1"); a * stands for any characters: "down*", "*.bias".
bool names_parameter(std::string_view pattern, std::string_view parameter);

// Throws UsageError for a pattern in one of the three lists of [optimizer] that matches none of
// these parameters, and if nothing is left to train.
void check_parameter_names(const recipe::Recipe& recipe, const NamedTensors& all);

// Freezes the parameters that `frozen` in [optimizer] names. Throws as above.
void freeze_parameters(const recipe::Recipe& recipe, Pipeline& pipeline);
// The same for the parameters of one rank, without checking the names.
void freeze_named(const recipe::Recipe& recipe, const NamedTensors& parameters);

// The trained parameters of a stage in groups of equal weight decay and learning rate.
struct StageGroups {
  std::vector<optim::ParameterGroup> groups;
  std::vector<std::string> names;  // of all groups, in order
};
// `parameters`: what the stage's optimizer steps, parameters or shards of them; `whole`: the
// model's parameters by the same names, whose dimensions and requires_grad decide.
StageGroups groups_of(const recipe::Recipe& recipe, const NamedTensors& whole,
                      const NamedTensors& parameters);

}  // namespace trestle::train
