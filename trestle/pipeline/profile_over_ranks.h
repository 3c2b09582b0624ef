#pragma once

#include "trestle/pipeline/partitioned_model.h"
#include "trestle/pipeline/stage_exchange.h"
#include "trestle/simulate/costs.h"

// What ranks that measured their own stages tell each other.
namespace trestle::pipeline {

// Sends one message of each route between ranks there and back, from device to device; half of the
// fastest of a few is its time. All ranks call it, with the bytes of their routes in `costs`.
void measure_routes_between_ranks(const PartitionedModel& model, const StageExchange& exchange,
                                  simulate::Costs& costs);

// Each rank's own stages, and the routes that leave them, as one profile, the same on all ranks. A
// device is one rank's alone, whatever its name on another machine.
simulate::Costs gather_costs(const PartitionedModel& model, const StageExchange& exchange,
                             const simulate::Costs& own);

}  // namespace trestle::pipeline
