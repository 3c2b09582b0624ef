#pragma once

#include <vector>

#include "trestle/plan/machine/calibration.h"
#include "trestle/train/sharding_plan.h"

// Messages whose time a machine file has. Inside of the trainer. Not installed.
namespace trestle::train {

// The cost of messages of `bytes` among `ranks`: without a table of this kind `otherwise`, else a
// rate for each byte that a rank sends with which one message takes the table's time. All tables
// are of one transport and inside one machine.
MessageCost cost_in_tables(const std::vector<plan::MessageTable>& tables, plan::Exchange kind,
                           int ranks, double bytes, const MessageCost& otherwise);

// The table's kind of a layer's collective. An exchange of all with all sends what a gather sends.
plan::Exchange exchange_of(MessageKind kind);

}  // namespace trestle::train
