#pragma once

#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/transport/stage_exchange.h"
#include "trestle/simulate/costs.h"

// The profile of a pipeline over ranks.
namespace trestle::pipeline {

// Times one message of each route and tie between ranks, there and back, from device to device:
// half of the fastest round. All ranks call it, with the bytes of their routes and ties in `costs`.
void measure_routes_between_ranks(const PartitionedModel& model, const StageExchange& exchange,
                                  simulate::Costs& costs);

// Merges each rank's stages, and the routes that leave them, into one profile, the same on all
// ranks. Devices of different ranks are different devices, even if their names are equal.
simulate::Costs gather_costs(const PartitionedModel& model, const StageExchange& exchange,
                             const simulate::Costs& own);

}  // namespace trestle::pipeline
