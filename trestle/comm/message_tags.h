#pragma once

#include "trestle/comm/request.h"

// Tags of the backend. Each user tag becomes two: one for messages with a fingerprint, one for
// messages without. All fingerprints share one tag. Collectives that are made of messages have two.
namespace trestle::comm {

inline int plain_tag(int tag) { return 2 * tag; }
inline int checked_tag(int tag) { return 2 * tag + 1; }
inline constexpr int print_tag = 2 * (most_tag + 1);
inline constexpr int reduce_tag = print_tag + 1;  // shards that are to be reduced
inline constexpr int gather_tag = print_tag + 2;  // shards that are gathered, or already reduced

}  // namespace trestle::comm
