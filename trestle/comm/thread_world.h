#pragma once

#include <chrono>
#include <memory>

#include "trestle/comm/thread_board.h"
#include "trestle/comm/world.h"

namespace trestle::comm {

inline constexpr int most_thread_ranks = 256;

// Rank `rank` of a world of threads; its ranks share the board.
World thread_world(const std::shared_ptr<ThreadBoard>& board, int rank,
                   std::chrono::milliseconds deadline, const std::string& started_by = "spawn");

}  // namespace trestle::comm
