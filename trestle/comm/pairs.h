#pragma once

#include <cstddef>

namespace trestle::comm {

// In which order reductions take the ranks: neighbours, then neighbours of these, as ((0 + 1) + (2 + 3)) + 4. Half of the
// ranks, where their number is a power of two, are a branch of their own, so that who has added up twice as much before
// gets the same bits from half the ranks. Calls combine(a, b), a < b, for each addition of b to a; 0 has the whole in the
// end.
template <class Combine>
void for_pairs(std::size_t size, const Combine& combine) {
  for (std::size_t distance = 1; distance < size; distance *= 2)
    for (std::size_t at = 0; at + distance < size; at += 2 * distance) combine(at, at + distance);
}

}  // namespace trestle::comm
