#pragma once

namespace trestle::train {

// Which of the weights that a run keeps.
enum class Checkpoint {
  Best,  // of the epoch with the best validation metric
  Last,  // where --resume would go on from
};

}  // namespace trestle::train
