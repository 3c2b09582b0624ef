#include "trestle/train/optimizers/parameter_groups.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

constexpr std::string_view one_dimensional = "one_dimensional";

// Whether the name matches a pattern with * for any characters.
bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  for (std::size_t begin = star; begin <= name.size(); ++begin)
    if (matches(pattern.substr(star + 1), name.substr(begin))) return true;
  return false;
}

struct RateFactor {
  std::string pattern;
  double factor;
};

std::vector<RateFactor> rate_factors(const recipe::Recipe& recipe) {
  std::vector<RateFactor> factors;
  for (const std::string& entry : recipe.optimizer.rate_factors) {
    const std::size_t sign = entry.rfind('=');
    const std::string number = sign == std::string::npos ? "" : trim(entry.substr(sign + 1));
    double factor = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), factor);
    if (error != std::errc() || end != number.data() + number.size() || !(factor > 0) ||
        factor > 1e9)
      throw UsageError(text("'rate_factors' in [optimizer] is a list of \"pattern=factor\" with a "
                            "factor above 0, not \"",
                            entry, "\""),
                       {.hint = "For example [\"in=0.1\", \"*.bias=2\"]."});
    factors.push_back({trim(entry.substr(0, sign)), factor});
  }
  return factors;
}

bool decays(const recipe::Recipe& recipe, const std::string& name, const at::Tensor& parameter) {
  for (const std::string& pattern : recipe.optimizer.no_weight_decay)
    if (pattern == one_dimensional ? parameter.dim() <= 1 : names_parameter(pattern, name))
      return false;
  return true;
}

bool is_frozen(const recipe::Recipe& recipe, const std::string& name) {
  const auto& frozen = recipe.optimizer.frozen;
  return std::any_of(frozen.begin(), frozen.end(),
                     [&](const std::string& pattern) { return names_parameter(pattern, name); });
}

void check_pattern(const std::string& key, const std::string& pattern, const NamedTensors& all) {
  for (const auto& [name, parameter] : all)
    if (names_parameter(pattern, name)) return;
  std::vector<std::string> known;
  for (const auto& [name, parameter] : all) {
    known.push_back(name);
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      known.push_back(name.substr(0, dot));
  }
  throw UsageError(text("'", key, "' in [optimizer]: no layer or parameter is named '", pattern,
                        "'", did_you_mean(pattern, known)),
                   {.hint = "A * stands for any characters: \"down*\", \"*.bias\"."});
}

}  // namespace

bool names_parameter(std::string_view pattern, std::string_view parameter) {
  if (matches(pattern, parameter)) return true;
  for (std::size_t dot = parameter.find('.'); dot != std::string_view::npos;
       dot = parameter.find('.', dot + 1))
    if (matches(pattern, parameter.substr(0, dot))) return true;
  return false;
}

void check_parameter_names(const recipe::Recipe& recipe, const NamedTensors& all) {
  for (const std::string& pattern : recipe.optimizer.frozen) check_pattern("frozen", pattern, all);
  for (const std::string& pattern : recipe.optimizer.no_weight_decay)
    if (pattern != one_dimensional) check_pattern("no_weight_decay", pattern, all);
  for (const RateFactor& entry : rate_factors(recipe))
    check_pattern("rate_factors", entry.pattern, all);
  const bool trains =
      all.empty() || std::any_of(all.begin(), all.end(), [&](const auto& parameter) {
        return !is_frozen(recipe, parameter.first) && parameter.second.requires_grad();
      });
  if (!trains && recipe.optimizer.frozen.empty() && recipe.adapters.frozen_type == "fp32")
    throw UsageError("no parameter of the model needs a gradient: nothing is left to train");
  if (!trains && recipe.optimizer.frozen.empty())
    throw UsageError(text("'frozen_type' = \"", recipe.adapters.frozen_type,
                          "\" in [adapters] freezes every matrix: nothing is left to train"),
                     {.hint = "Set 'adapter_rank' in [adapters] too."});
  if (!trains)
    throw UsageError("'frozen' in [optimizer] names every parameter: nothing is left to train",
                     {.hint = "Leave out what is to be trained."});
}

void freeze_parameters(const recipe::Recipe& recipe, Pipeline& pipeline) {
  const NamedTensors all = pipeline.named_parameters();
  check_parameter_names(recipe, all);
  freeze_named(recipe, all);
}

void freeze_named(const recipe::Recipe& recipe, const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    if (is_frozen(recipe, name)) at::Tensor(parameter).requires_grad_(false);
}

StageGroups groups_of(const recipe::Recipe& recipe, const NamedTensors& whole,
                      const NamedTensors& parameters) {
  const std::map<std::string, at::Tensor> whole_of(whole.begin(), whole.end());
  const std::vector<RateFactor> factors = rate_factors(recipe);
  std::vector<optim::ParameterGroup> groups;
  std::vector<std::vector<std::string>> group_names;
  for (const auto& [name, stepped] : parameters) {
    const at::Tensor& parameter = whole_of.at(name);
    if (!parameter.requires_grad()) continue;
    double factor = 1;  // the last matching pattern counts
    for (const RateFactor& entry : factors)
      if (names_parameter(entry.pattern, name)) factor = entry.factor;
    std::optional<double> decay;
    if (!decays(recipe, name, parameter)) decay = 0;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) {
      return known.rate_factor == factor && known.weight_decay == decay;
    });
    if (group == groups.end()) {
      groups.push_back({.parameters = {}, .rate_factor = factor, .weight_decay = decay});
      group_names.emplace_back();
      group = std::prev(groups.end());
    }
    group->parameters.push_back(stepped);
    group_names[static_cast<std::size_t>(group - groups.begin())].push_back(name);
  }
  StageGroups result{.groups = std::move(groups), .names = {}};
  for (const auto& some : group_names)
    result.names.insert(result.names.end(), some.begin(), some.end());
  return result;
}

}  // namespace trestle::train
