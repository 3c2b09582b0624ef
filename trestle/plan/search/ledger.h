#pragma once

#include <string_view>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/plan/search/strategy.h"

namespace trestle::plan {

// The bytes of the device of one stage, or of a rank's several stages, at its peak, by purpose.
struct Ledger {
  int stage = 0;          // or the rank
  double parameters = 0;  // weights, in the type of the products
  double gradients = 0;
  double optimizer = 0;    // its averages and fp32 weights
  double activations = 0;  // of all micro-batches in flight
  double logits = 0;       // the scores, their fp32 copy and their gradient
  double transient = 0;    // of one recomputed block
  double gathered = 0;     // parameters of other data ranks, gathered for a layer
  double messages = 0;     // buffers of the pipeline
  double reserved = 0;     // the machine file's
  double host = 0;         // in the host's memory, and so not in total()

  double total() const {
    return parameters + gradients + optimizer + activations + logits + transient + gathered +
           messages + reserved;
  }
};

// Bytes of one parameter.
struct ParameterBytes {
  double weight = 2, gradient = 2, optimizer = 12;
};
// 2, 2 and 12 in 16 bits, with an fp32 copy of the weights; 4, 4 and 8 in fp32.
ParameterBytes parameter_bytes(Precision precision);

struct StateSplit {
  int level = 0;   // of ZeRO
  int shards = 1;  // the ranks that shard, Strategy::shards()
  bool offload = false;
};

// Weights, gradients and Adam's state of `parameters` parameters, when `shards` ranks shard them at
// a level of ZeRO. In 16 bits: 16 P at level 0, 4 P + 12 P / d at level 1, 2 P + 14 P / d at level
// 2 and 16 P / d at level 3 (Rajbhandari et al. 2020, table 1). With `offload` the optimizer's
// state is in the host's memory, and at level 3 weights and gradients too.
void set_states(Ledger* ledger, double parameters, const StateSplit& split,
                const ParameterBytes& bytes = {});

// The first of the largest. `ledgers` has one or more.
const Ledger& worst_of(const std::vector<Ledger>& ledgers);

struct LedgerLine {
  std::string_view name;
  double bytes = 0;
};

// The lines above 0, in the order above.
std::vector<LedgerLine> lines_of(const Ledger& ledger);

}  // namespace trestle::plan
