#pragma once

namespace trestle::train {

// Which weights of a run.
enum class Checkpoint {
  Best,  // of the epoch with the best validation metric
  Last,  // of the checkpoint that --resume reads
};

}  // namespace trestle::train
