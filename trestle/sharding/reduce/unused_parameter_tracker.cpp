#include "trestle/sharding/reduce/unused_parameter_tracker.h"

#include <ATen/Functions.h>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"

namespace trestle::sharding {
namespace {

constexpr const char* static_graph_hint =
    "UnusedParameters::Static requires that each step uses the same parameters as the first one. "
    "UnusedParameters::Find checks every step instead.";

const void* parameter_key(const at::Tensor& parameter) { return parameter.unsafeGetTensorImpl(); }

}  // namespace

bool UnusedParameterTracker::is_unused(const at::Tensor& parameter) const {
  const auto found = first_step_.find(parameter_key(parameter));
  return found != first_step_.end() && found->second.gradients == 0;
}

void UnusedParameterTracker::check_gradient(const std::string& name,
                                            const at::Tensor& parameter) const {
  if (is_unused(parameter))
    throw StateError(text("parameter '", name, "' got a gradient, but got none in the first step"),
                     {.hint = static_graph_hint});
}

void UnusedParameterTracker::check_missing(const std::vector<std::string>& names) const {
  if (names.empty() || mode_ != UnusedParameters::Refuse) return;
  throw StateError(text("no gradient came for ", names.size() == 1 ? "parameter " : "parameters ",
                        join(names, ", ")),
                   {.hint = "If the loss leaves them out on purpose, set unused_parameters = "
                            "UnusedParameters::Find, or freeze them (requires_grad)."});
}

void UnusedParameterTracker::compare_with_first_step(const FlatParameterGroups& groups,
                                                     const BackwardPass& pass) const {
  if (!pass.has_samples) return;
  std::vector<std::string> differences;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g]->trained()) continue;
    for (std::size_t i = 0; i < groups[g]->size(); ++i) {
      const at::Tensor& parameter = groups[g]->parameter(i);
      const auto found = first_step_.find(parameter_key(parameter));
      if (found == first_step_.end() || !parameter.requires_grad()) continue;
      const int now = pass.groups[g].counts[i];
      const int first = found->second.gradients.value_or(now);
      if (now != first)
        differences.push_back(text("'", groups[g]->name(i), "' got ", counted(now, "gradient"),
                                   ", but ", first, " in the first step"));
      else if (pass.groups[g].arrived[i] && !found->second.on_any)
        differences.push_back(text("'", groups[g]->name(i),
                                   "' has a gradient of a backward inside no_sync(), but got none "
                                   "in the first step"));
    }
  }
  if (!differences.empty())
    throw StateError("parameter " + join(differences, "; "), {.hint = static_graph_hint});
}

std::vector<std::vector<bool>> UnusedParameterTracker::arrived_on_any(
    const FlatParameterGroups& groups, const BackwardPass& pass, ReducerStats& stats) const {
  ++stats.unused_checks;
  std::int64_t count = 0;
  for (const auto& group : groups)
    if (group->trained()) count += static_cast<std::int64_t>(group->size());
  const at::Tensor bits = at::zeros({count}, at::kByte);
  auto* bit = bits.mutable_data_ptr<std::uint8_t>();
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g]->trained())
      for (const bool arrived : pass.groups[g].arrived) *bit++ = arrived ? 1 : 0;
  comm::with_purpose([] { return "while the ranks compared which parameters have gradients"; },
                     [&] { ranks_.all_reduce(bits, comm::Reduce::Max).wait(); });
  const auto* found = bits.const_data_ptr<std::uint8_t>();
  std::vector<std::vector<bool>> arrived(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g]->trained())
      for (std::size_t i = 0; i < groups[g]->size(); ++i) arrived[g].push_back(*found++ != 0);
  return arrived;
}

void UnusedParameterTracker::note_first_step(const FlatParameterGroup& group,
                                             const std::vector<bool>& on_any) {
  for (std::size_t i = 0; i < group.size(); ++i)
    first_step_[parameter_key(group.parameter(i))].on_any = on_any[i];
}

std::vector<bool> UnusedParameterTracker::used_in_group(const FlatParameterGroup& group,
                                                        const BackwardPass::Arrivals& own) const {
  std::vector<bool> used;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const at::Tensor& parameter = group.parameter(i);
    const auto first = first_step_.find(parameter_key(parameter));
    if (mode_ != UnusedParameters::Static || !parameter.requires_grad())
      used.push_back(own.arrived[i] || parameter.requires_grad());
    else
      used.push_back(first != first_step_.end() && first->second.on_any);
  }
  return used;
}

void UnusedParameterTracker::note_counts(const FlatParameterGroup& group,
                                         const BackwardPass::Arrivals& own) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (!group.parameter(i).requires_grad()) continue;
    auto& first = first_step_[parameter_key(group.parameter(i))].gradients;
    if (!first) first = own.counts[i];
  }
}

std::vector<std::vector<bool>> UnusedParameterTracker::used(const FlatParameterGroups& groups,
                                                            const BackwardPass& pass,
                                                            ReducerStats& stats) {
  if (mode_ == UnusedParameters::Find) return arrived_on_any(groups, pass, stats);
  const bool is_static = mode_ == UnusedParameters::Static;
  const bool is_first = is_static && first_step_.empty();
  if (is_static && !is_first) compare_with_first_step(groups, pass);
  auto used = is_first ? arrived_on_any(groups, pass, stats)
                       : std::vector<std::vector<bool>>(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g]->trained()) continue;
    if (is_first)
      note_first_step(*groups[g], used[g]);
    else
      used[g] = used_in_group(*groups[g], pass.groups[g]);
    if (is_static && pass.has_samples) note_counts(*groups[g], pass.groups[g]);
  }
  return used;
}

}  // namespace trestle::sharding
