#include "trestle/plan/search/ledger.h"

namespace trestle::plan {

void set_states(Ledger* ledger, double parameters, int level, int data) {
  const auto shards = [=](int first) { return level >= first ? data : 1; };
  ledger->parameters = 2 * parameters / shards(3);
  ledger->gradients = 2 * parameters / shards(2);
  ledger->optimizer = 12 * parameters / shards(1);
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

}  // namespace trestle::plan
