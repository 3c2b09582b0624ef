#include "trestle/plan/fit.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "trestle/base/text.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using Modes = std::vector<schedule::Recompute>;

constexpr double margin = 1.05;

void scale(Bytes& bytes, double factor) {
  bytes = static_cast<Bytes>(static_cast<double>(bytes) * factor);
}

int largest_micro_batch(int samples, int micro_batches) {
  return (samples + micro_batches - 1) / micro_batches;
}

simulate::Costs for_smaller_micro_batches(simulate::Costs costs, double factor) {
  if (factor == 1) return costs;
  for (auto& cost : costs.stages) {
    scale(cost.saved, factor);
    scale(cost.kept_for_recompute, factor);
    if (cost.kept_for_weights) scale(*cost.kept_for_weights, factor);
    scale(cost.output_kept, factor);
    scale(cost.transient_forward, factor);
    scale(cost.transient_no_graph, factor);
    scale(cost.transient_recompute, factor);
    scale(cost.transient_backward, factor);
    // The share of the gradients is unknown: use the upper bound. A later W mostly needs the
    // gradient of one weight, which has one size.
    cost.transient_first_backward = 0;
    cost.transient_first_weight_grad.reset();
  }
  for (auto& route : costs.routes) {
    scale(route.bytes, factor);
    scale(route.saved, factor);
    scale(route.activation_excess, factor);
  }
  return costs;
}

// The peak of the device that is closest to its budget, "40 MiB of 60 MiB". Nothing if a device
// exceeds its budget.
std::optional<std::string> fitting_peak(const FitQuestion& question, const simulate::Costs& costs,
                                        int micro_batches, const Modes& modes) {
  const int measured = question.split_size > 0
                           ? std::min(question.split_size, question.samples)
                           : largest_micro_batch(question.samples, question.micro_batches);
  const double factor =
      micro_batches == question.micro_batches
          ? 1
          : static_cast<double>(largest_micro_batch(question.samples, micro_batches)) / measured;
  const auto timeline = simulate::simulate(question.lower(micro_batches, modes),
                                           for_smaller_micro_batches(costs, factor));
  double fullest = 0;
  std::string words;
  for (std::size_t device = 0; device < question.budgets.size(); ++device) {
    const Bytes budget = question.budgets[device];
    const Bytes peak = timeline.device_peak_bytes.at(device);
    if (budget == 0) continue;
    const double share = static_cast<double>(peak) / static_cast<double>(budget);
    if (share * margin > 1) return std::nullopt;
    if (share < fullest) continue;
    fullest = share;
    words = text(format_bytes(peak), " of ", format_bytes(budget));
  }
  return words;
}

std::string describe(const FitQuestion& question, int micro_batches, const Modes& modes) {
  std::vector<std::string> changes;
  if (modes != question.recompute) changes.emplace_back("recompute = \"always\"");
  if (micro_batches != question.micro_batches)
    changes.push_back(
        question.split_size > 0
            ? text("split_size = ", largest_micro_batch(question.samples, micro_batches))
            : text("micro_batches = ", micro_batches));
  return join(changes, " and ");
}

}  // namespace

std::string suggest_fit(const FitQuestion& question, const simulate::Costs& costs) {
  const bool limited = std::any_of(question.budgets.begin(), question.budgets.end(),
                                   [](Bytes budget) { return budget > 0; });
  if (costs.stages.empty() || !limited) {
    return "More micro-batches, recompute = \"always\", or fewer layers in this stage would need "
           "less memory.";
  }
  std::vector<int> counts = question.other_micro_batches;
  counts.insert(counts.begin(), question.micro_batches);
  const Modes always(question.recompute.size(), schedule::Recompute::Always);
  std::vector<std::string> ways;
  std::vector<Modes> all_modes = {question.recompute};
  if (question.recompute != always) all_modes.push_back(always);
  for (const Modes& modes : all_modes) {
    for (const int count : counts) {
      const std::string change = describe(question, count, modes);
      const bool both = count != question.micro_batches && modes != question.recompute;
      if (change.empty() || (both && !ways.empty())) continue;
      const auto peak = fitting_peak(question, costs, count, modes);
      if (!peak) continue;
      ways.push_back(text(change, " (predicted peak ", *peak, ")"));
      break;
    }
  }
  if (!ways.empty()) return "It would fit with " + join(ways, " or ") + ".";
  return "Neither more micro-batches nor recomputation makes it fit: move layers to other stages, "
         "or raise the budget.";
}

}  // namespace trestle::plan
