#pragma once

#include "trestle/comm/world.h"

// Checks of collectives that every backend must pass: each rank compares results with a plain
// computation, for worlds of any size.
namespace trestle::testing {

void check_broadcast(World& world);
void check_all_reduce(World& world);
void check_reduce_scatter(World& world);
void check_all_gather(World& world);
void check_all_gather_uneven(World& world);
void check_all_to_all(World& world);
void check_many_dimensions(World& world);
void check_writes_are_seen_by_autograd(World& world);
void check_inference_tensors(World& world);
void check_bytes(World& world);
void check_messages(World& world);
void check_empty_tensors(World& world);
void check_memory_formats(World& world);
void check_many_in_flight(World& world);
void check_dropped_works(World& world);
void check_groups(World& world);
void check_without_fingerprints(World& world);
void check_refused_tensors(World& world);

// Runs all of them.
void check_collectives(World& world);

}  // namespace trestle::testing
