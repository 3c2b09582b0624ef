#include "trestle/plan/fit.h"

#include "trestle/base/text.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

// How far a peak may lie above the expected one: how long a message waits for a slow neighbour
// differs from step to step.
constexpr double margin = 1.05;

void scale(Bytes& bytes, double factor) {
  bytes = static_cast<Bytes>(static_cast<double>(bytes) * factor);
}

Bytes expected_peak(const FitQuestion& question, simulate::Costs costs) {
  const auto table = schedule::lower(
      schedule::generate(question.schedule, {.stages = static_cast<int>(question.recompute.size()),
                                             .micro_batches = question.micro_batches,
                                             .backward_order = question.backward_order}),
      {.routes = question.routes, .recompute = question.recompute});
  return simulate::simulate(table, costs).peak_bytes[table.rank_of_stage[question.stage]];
}

simulate::Costs for_smaller_pieces(simulate::Costs costs, double factor) {
  for (auto& cost : costs.stages) {
    scale(cost.saved, factor);
    scale(cost.kept_for_recompute, factor);
    scale(cost.transient_forward, factor);
    scale(cost.transient_backward, factor);
    cost.transient_first_backward = 0;  // of the gradients' part nobody knows: the upper bound
  }
  for (auto& route : costs.routes) {
    scale(route.bytes, factor);
    scale(route.saved, factor);
  }
  return costs;
}

}  // namespace

std::string suggest_fit(const FitQuestion& question, const simulate::Costs& costs) {
  if (costs.stages.empty() || question.budget == 0) {
    return "More micro-batches, recompute = \"always\", or fewer layers in this stage need less "
           "memory.";
  }
  std::vector<std::string> ways;
  auto try_out = [&](const FitQuestion& other, const std::string& what) {
    const double factor = static_cast<double>(question.micro_batches) / other.micro_batches;
    const Bytes peak = expected_peak(other, for_smaller_pieces(costs, factor));
    if (static_cast<double>(peak) * margin <= static_cast<double>(question.budget))
      ways.push_back(what + " (predicted peak " + format_bytes(peak) + ")");
  };
  FitQuestion other = question;
  for (const int times : {2, 4, 8}) {
    other.micro_batches = question.micro_batches * times;
    if (!ways.empty() || other.micro_batches > question.most_micro_batches) break;
    try_out(other, text("micro_batches = ", other.micro_batches));
  }
  other = question;
  other.recompute.assign(question.recompute.size(), schedule::Recompute::Always);
  if (other.recompute != question.recompute) try_out(other, "recompute = \"always\"");
  for (const int times : {2, 4, 8}) {  // both, if neither alone does
    other.micro_batches = question.micro_batches * times;
    if (!ways.empty() || other.micro_batches > question.most_micro_batches) break;
    try_out(other, text("recompute = \"always\" and micro_batches = ", other.micro_batches));
  }
  if (!ways.empty()) return "It would fit with " + join(ways, " or ") + ".";
  return "Neither more micro-batches nor recomputation makes it fit: move layers to other stages, "
         "or "
         "raise the budget.";
}

}  // namespace trestle::plan
