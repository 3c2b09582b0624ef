#pragma once

#include <filesystem>

#include "trestle/sharding/save.h"

// The two halves of save(). Internal to sharding.
namespace trestle::sharding {

struct PreparedSave {
  checkpoint::TensorGroups groups;  // views of this rank's tensors
  checkpoint::TrainState state;     // with the model's own progress
};

// Throws, on all ranks, what one met.
PreparedSave prepare_save(const Sharded& sharded, const torch::optim::Optimizer* optimizer,
                          checkpoint::TrainState state, const SaveOptions& options);

void write_save(const std::filesystem::path& folder, const PreparedSave& step,
                const comm::Group& ranks);

}  // namespace trestle::sharding
