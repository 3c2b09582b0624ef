#include "trestle/plan/gpt/sent_bytes.h"

#include <algorithm>
#include <cstddef>

#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::plan {
namespace {

struct SentBytes {
  double inside = 0, between = 0;
};

SentBytes operator*(double times, const SentBytes& bytes) {
  return {times * bytes.inside, times * bytes.between};
}

// Each rank of a group sends these for an all-reduce, as all_reduce_seconds() takes its time.
SentBytes sent_by_all_reduce(double bytes, const GroupPlace& place) {
  const int ranks_in_node = std::min(place.per_node, place.ranks);
  const int nodes_of_group = (place.ranks + ranks_in_node - 1) / ranks_in_node;
  const double in_node = ranks_in_node, nodes = nodes_of_group;
  return {.inside = 2 * (in_node - 1) / in_node * bytes,
          .between = 2 * (nodes - 1) / nodes * bytes / in_node};
}

void add_to(double GroupBytes::*group, const SentBytes& sent, LinkBytes* bytes) {
  bytes->inside.*group += sent.inside;
  bytes->between.*group += sent.between;
}

// The all-reduces of one micro-batch: two of each block in each pass, and two more in one that is
// recomputed; one of the embedding and one of the head.
double tensor_all_reduces(const Strategy& strategy, const std::vector<int>& layers,
                          std::size_t stage) {
  const bool repeats = strategy.recompute == BlockRecompute::All;
  const int again = repeats ? recomputed_blocks(strategy, layers[stage]) : 0;
  return 4.0 * layers[stage] + 2.0 * again + (stage == 0 ? 1 : 0) +
         (stage + 1 == layers.size() ? 1 : 0);
}

// Half all-reduces of all parameters in a step: gathers of parameters and scatters of gradients.
double half_all_reduces(const Strategy& strategy, double micro_batches) {
  if (strategy.level <= 1) return 2;
  if (strategy.level == 2) return micro_batches + 1;
  return 3 * micro_batches;
}

}  // namespace

std::vector<LinkBytes> bytes_sent_by_stages(const GptModel& model, const Strategy& strategy,
                                            const Machine& machine, const GptStages& stages,
                                            std::int64_t micro_batches) {
  const auto n = static_cast<double>(micro_batches);
  const double of_number = strategy.precision == Precision::Fp32 ? 4 : 2;
  const double message =
      of_number * strategy.micro_batch * static_cast<double>(model.sequence * model.hidden);
  std::vector<LinkBytes> sent;
  for (std::size_t s = 0; s < stages.layers.size(); ++s) {
    LinkBytes bytes{.stage = static_cast<int>(s), .inside = {}, .between = {}};
    add_to(&GroupBytes::tensor,
           n * tensor_all_reduces(strategy, stages.layers, s) *
               sent_by_all_reduce(message, place_of_tensor_group(strategy, machine)),
           &bytes);
    const auto add_neighbour = [&](std::size_t first) {
      if (reach_after_stage(strategy, machine, static_cast<int>(first)) == Reach::Inside)
        bytes.inside.pipeline += n * message;
      else
        bytes.between.pipeline += n * message / strategy.tensor;
    };
    if (s > 0) add_neighbour(s - 1);
    if (s + 1 < stages.layers.size()) add_neighbour(s);
    const double state = of_number * stages.parameters[s];
    add_to(&GroupBytes::data,
           half_all_reduces(strategy, n) / 2 *
               sent_by_all_reduce(state, place_of_data_group(strategy, machine)),
           &bytes);
    if (strategy.replicate > 1)
      add_to(&GroupBytes::data,
             sent_by_all_reduce(state / strategy.shards(), place_of_row_group(strategy, machine)),
             &bytes);
    sent.push_back(bytes);
  }
  return sent;
}

}  // namespace trestle::plan
