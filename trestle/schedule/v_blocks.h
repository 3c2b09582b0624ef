#pragma once

#include <array>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/schedule.h"

// Schedules of building blocks in a V (Qi et al. 2024, "Pipeline Parallelism with Controllable
// Memory"). Not installed.
namespace trestle::schedule {

// The slots of one micro-batch.
struct VBlock {
  // Between the same action of neighbouring ranks, on the way to the last rank (F of the first
  // chunk and I of the second) and on the way back. Smaller hops return earlier, and keep less.
  int there = 1;
  int back = 1;
  // At its turns: on the last rank, on the first one, and on the last one again.
  std::array<int, 3> gaps = {0, 0, 0};
};

// Two stages on each rank. The blocks of two micro-batches are 6 slots apart. They give the order
// of a rank's actions: of those whose input is there, it runs the F or I that is first in its
// block. A rank runs no F while it keeps `most_kept` micro-batches of its chunks, each from its F
// to its W, and a W when nothing else can run.
Schedule stack_blocks(const GenerateOptions& options, const VBlock& block, int most_kept);

}  // namespace trestle::schedule
