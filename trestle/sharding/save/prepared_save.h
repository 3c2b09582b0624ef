#pragma once

#include <filesystem>

#include "trestle/sharding/save/save.h"

// The two halves of save().
namespace trestle::sharding {

struct PreparedSave {
  checkpoint::TensorGroups groups;  // views of this rank's tensors
  checkpoint::TrainState state;     // with the model's own progress
};

// An error of one rank is thrown on all.
PreparedSave prepare_save(const Sharded& sharded, const torch::optim::Optimizer* optimizer,
                          checkpoint::TrainState state, const SaveOptions& options);

void write_save(const std::filesystem::path& folder, const PreparedSave& save,
                const comm::Group& ranks);

}  // namespace trestle::sharding
