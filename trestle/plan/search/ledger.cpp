#include "trestle/plan/search/ledger.h"

#include <algorithm>
#include <utility>

#include "trestle/plan/search/planned_model.h"

namespace trestle::plan {

ParameterBytes parameter_bytes(Precision precision) {
  if (precision == Precision::Fp32) return {.weight = 4, .gradient = 4, .optimizer = 8};
  return {};
}

void set_states(Ledger* ledger, double parameters, const StateSplit& split,
                const ParameterBytes& bytes) {
  const auto shards = [&](int first) { return split.level >= first ? split.shards : 1; };
  ledger->parameters = bytes.weight * parameters / shards(3);
  ledger->gradients = bytes.gradient * parameters / shards(2);
  ledger->optimizer = bytes.optimizer * parameters / shards(1);
  if (!split.offload || split.level == 0) return;
  const auto move = [&](double* line) { ledger->host += std::exchange(*line, 0); };
  move(&ledger->optimizer);
  if (split.level < 3) return;
  move(&ledger->parameters);
  move(&ledger->gradients);
}

const Ledger& worst_of(const std::vector<Ledger>& ledgers) {
  return *std::max_element(ledgers.begin(), ledgers.end(),
                           [](const Ledger& a, const Ledger& b) { return a.total() < b.total(); });
}

std::vector<LedgerLine> lines_of(const Ledger& ledger) {
  std::vector<LedgerLine> lines;
  for (const LedgerLine line : {LedgerLine{"parameters", ledger.parameters},
                                {"gradients", ledger.gradients},
                                {"optimizer", ledger.optimizer},
                                {"activations in flight", ledger.activations},
                                {"logits", ledger.logits},
                                {"one recomputed block", ledger.transient},
                                {"gathered parameters", ledger.gathered},
                                {"messages", ledger.messages},
                                {"reserved", ledger.reserved}})
    if (line.bytes > 0) lines.push_back(line);
  return lines;
}

Ledger PlannedModel::worst_ledger(const Strategy& strategy, std::int64_t micro_batches) const {
  return worst_of(ledgers(strategy, micro_batches));
}

}  // namespace trestle::plan
