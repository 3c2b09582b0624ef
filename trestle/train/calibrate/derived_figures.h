#pragma once

#include <string>

#include "trestle/plan/machine/machine.h"
#include "trestle/train/calibrate/block_costs.h"

// The figures of a machine that follow from its measured tables. Inside of the trainer. Not
// installed.
namespace trestle::train {

// The type of numbers whose products reach the most FLOP/s, bf16 or fp32; "fp32" without a table.
std::string fastest_type(const plan::Machine& machine);

// Fills in `peak` and `transformer` from the products of `type`, memory_bandwidth, the optimizers
// and the parts of a block (docs/calibrate.md has the mapping). `optimizer_start`: seconds of a
// step on one number.
void derive_transformer(const BlockCosts& block, const std::string& type,
                        const plan::Figure& optimizer_start, plan::Machine* machine);

// Fills in `inside`, `between` and `all_reduce` from the tables over `transport`. Without a table a
// link is assumed, and says so.
void derive_links(const std::string& transport, plan::Machine* machine);

// The transport whose tables count for ranks of their own: nccl, then gloo, then threads; empty
// without tables.
std::string counted_transport(const plan::Machine& machine);

}  // namespace trestle::train
