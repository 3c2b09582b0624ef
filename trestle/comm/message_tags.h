#pragma once

#include "trestle/comm/request.h"

// The engine's tags: a user's tag stands for two, one for messages with a fingerprint and one for those
// without, and the fingerprints have one for all. Collectives that are made of messages have two.
namespace trestle::comm {

inline int plain_tag(int tag) { return 2 * tag; }
inline int checked_tag(int tag) { return 2 * tag + 1; }
inline constexpr int print_tag = 2 * (most_tag + 1);
inline constexpr int part_tag = print_tag + 1;   // what is to be reduced
inline constexpr int whole_tag = print_tag + 2;  // what is gathered, or reduced already

}  // namespace trestle::comm
