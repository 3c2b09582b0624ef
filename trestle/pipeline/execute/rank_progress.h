#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trestle/pipeline/execute/mini_batch_state.h"

namespace trestle::pipeline {

// Which action a rank was at, for the message of a failure that came from another rank: "rank 0 was
// at 0RECV_B2, action 6 of 16, waiting for rank 1: 0F2 0F3 [0RECV_B2] 0B2 0RECV_B1 ...".
std::string describe_rank_progress(const MiniBatchState& state, int rank,
                                   const std::vector<schedule::Action>& row, std::size_t at);

}  // namespace trestle::pipeline
