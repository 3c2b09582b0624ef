#pragma once

#include <memory>

#include "trestle/comm/threads/thread_board.h"
#include "trestle/comm/world.h"
#include "trestle/comm/world_impl.h"

namespace trestle::comm {

inline constexpr int most_thread_ranks = 256;

// The World of one rank in a world of threads. All its ranks share the board.
World thread_world(const std::shared_ptr<ThreadBoard>& board, World::Impl::Facts facts);

}  // namespace trestle::comm
