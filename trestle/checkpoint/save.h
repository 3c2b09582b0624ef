#pragma once

#include <filesystem>

#include "trestle/checkpoint/files/train_state.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

// Saving and resuming a program's own training loop: model, optimizer and position in one folder
// (training_checkpoint.h), replaced atomically.
//
//   trestle::checkpoint::TrainState state;
//   if (trestle::checkpoint::is_checkpoint("last")) state = trestle::load("last", net, *optimizer);
//   while (state.step < 1000) {
//     train(state.step++);
//     if (state.step % 100 == 0) trestle::save("last", net, *optimizer, state);
//   }
//
// Names are those of the unsplit model, so any number of ranks can load what one process saved, and
// the other way round: see trestle/sharding/save/save.h, and Pipeline in docs/resume.md. Other
// exact state goes into state.numbers:
//
//   state.numbers.merge(scaler.state());     // precision::GradientScaler
//   scaler.load_state(state.numbers);        // after load()
namespace trestle {

namespace nn {
class Layers;
}

struct SaveOptions {
  // Also save the gradients, to stop within a step that adds up several backwards.
  bool gradients = false;
};

// Saves parameters, buffers and the optimizer's state, each tensor once even if it has several
// names. Throws like checkpoint::write_checkpoint(); UsageError for an optimizer with a parameter
// that is not the model's, or of a class that optim::make_optimizer() does not know.
void save(const std::filesystem::path& folder, const nn::Layers& model,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
          const SaveOptions& options = {});
void save(const std::filesystem::path& folder, const torch::nn::Module& model,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
          const SaveOptions& options = {});

// Loads into the model and the optimizer in place; returns the position of the saved training.
// Saved gradients are stored in grad(). Throws FileError if there is no such folder, FormatError if
// it is damaged. For another model or optimizer it throws FormatError that lists the differences;
// names, shapes and types are compared before anything is changed.
checkpoint::TrainState load(const std::filesystem::path& folder, const nn::Layers& model,
                            torch::optim::Optimizer& optimizer);
checkpoint::TrainState load(const std::filesystem::path& folder, torch::nn::Module& model,
                            torch::optim::Optimizer& optimizer);

}  // namespace trestle
