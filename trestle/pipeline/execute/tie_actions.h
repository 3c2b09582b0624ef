#pragma once

#include <vector>

#include "trestle/pipeline/execute/executor.h"

// The messages of tied parameters (tied_copies.h) as actions of a rank. They are not in the table:
// a rank adds them to its row. They have the kinds of a skip, and numbers of routes after those of
// the cut.
namespace trestle::pipeline {

// The routes of the cut, then those of its ties: all that a transport carries.
std::vector<schedule::Route> message_routes(const Cut& cut);
const schedule::Route& route_of(const Cut& cut, const Transfer& transfer);

bool is_tie(const Cut& cut, const schedule::Action& action);
Transfer tie_transfer(const schedule::Action& action);

// Adds the actions of ties to a rank's actions of one phase: a value is sent at the begin, or after
// UNSHARD of its stage, and received before the first forward of the copy's stage. A gradient is
// sent after the last backward of the copy's stage. An earlier stage receives it before its own
// last backward, if that ends its rank's row, or if REDUCE_GRAD follows: gradients are reduced
// while that backward runs. Otherwise, and at a later stage, it is received at the end of the row,
// before NORM: until then other stages may need this rank.
std::vector<schedule::Action> with_ties(const MiniBatchState& state, int rank, Phase phase,
                                        const std::vector<schedule::Action>& row);

void run_tie(MiniBatchState& state, const schedule::Action& action);

}  // namespace trestle::pipeline
