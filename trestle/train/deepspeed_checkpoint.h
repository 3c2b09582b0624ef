#pragma once

#include "trestle/checkpoint/files/train_state.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/training_setup.h"

// `deepspeed_checkpoints` of a recipe. Inside of the trainer. Not installed.
namespace trestle::train {

// Throws UsageError for a recipe whose training state DeepSpeed's folder cannot hold.
void check_deepspeed_checkpoints(const recipe::Recipe& recipe);

// Writes the checkpoint of the run, which was saved just before, again as DeepSpeed's folder
// deepspeed/ of the run. `next_rate` is the learning rate of the next step. All ranks call it.
void write_deepspeed_checkpoint(const TrainingSetup& setup, const RunFolder& folder,
                                const checkpoint::TrainState& state, double next_rate);

}  // namespace trestle::train
