#pragma once

#include <string_view>
#include <vector>

#include "trestle/base/units.h"

namespace trestle::plan {

// The bytes of one stage's device at its peak, by purpose.
struct Ledger {
  int stage = 0;
  double parameters = 0;  // weights, in the type of the products
  double gradients = 0;
  double optimizer = 0;    // its averages and fp32 weights
  double activations = 0;  // of all micro-batches in flight
  double logits = 0;       // the scores, their fp32 copy and their gradient
  double transient = 0;    // of one recomputed block
  double gathered = 0;     // parameters of other data ranks, gathered for a layer
  double messages = 0;     // buffers of the pipeline
  double reserved = 0;     // the machine file's

  double total() const {
    return parameters + gradients + optimizer + activations + logits + transient + gathered +
           messages + reserved;
  }
};

// Weights, gradients and Adam's state of `parameters` parameters, when `data` ranks shard them at a
// level of ZeRO. In mixed precision: 2, 2 and 12 bytes each, so 16 P at level 0, 4 P + 12 P / d at
// level 1, 2 P + 14 P / d at level 2 and 16 P / d at level 3 (Rajbhandari et al. 2020, table 1).
void set_states(Ledger* ledger, double parameters, int level, int data);

struct LedgerLine {
  std::string_view name;
  double bytes = 0;
};

// The lines above 0, in the order above.
std::vector<LedgerLine> lines_of(const Ledger& ledger);

}  // namespace trestle::plan
