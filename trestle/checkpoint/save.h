#pragma once

#include <filesystem>

#include "trestle/checkpoint/files/train_state.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

// A training loop of one's own that goes on where it stopped: model, optimizer and place in one folder
// (training_checkpoint.h), replaced as one.
//
//   trestle::checkpoint::TrainState state;
//   if (trestle::checkpoint::is_checkpoint("last")) state = trestle::load("last", net, *optimizer);
//   while (state.step < 1000) {
//     train(state.step++);
//     if (state.step % 100 == 0) trestle::save("last", net, *optimizer, state);
//   }
//
// Names are those of the unsplit model, so what one process saves any number of ranks load, and the other way round: see
// trestle/sharding/save.h, and Pipeline in docs/resume.md. What else must come back exactly goes into state.numbers:
//
//   state.numbers.merge(scaler.state());     // precision::GradientScaler
//   scaler.load_state(state.numbers);        // after load()
namespace trestle {

namespace nn {
class Layers;
}

struct SaveOptions {
  // The gradients as they are, too: of a step that adds up several backwards, in its middle.
  bool gradients = false;
};

// Parameters, buffers, and what the optimizer remembers, each tensor once, whatever the number of its names. Throws
// as checkpoint::write_checkpoint(); UsageError for an optimizer with a parameter that is not the model's, or that is none
// of optim::make_optimizer's and not one of the classes they derive from.
void save(const std::filesystem::path& folder, const nn::Layers& model,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
          const SaveOptions& options = {});
void save(const std::filesystem::path& folder, const torch::nn::Module& model,
          const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
          const SaveOptions& options = {});

// Into the model and the optimizer in place; returns where that training stood. Gradients that were saved are put into
// grad(). Throws FileError where there is no such folder, FormatError where it is damaged, or lists what differs where it
// is another model's or another optimizer's: before anything is changed, where names, shapes or types differ.
checkpoint::TrainState load(const std::filesystem::path& folder, const nn::Layers& model,
                            torch::optim::Optimizer& optimizer);
checkpoint::TrainState load(const std::filesystem::path& folder, torch::nn::Module& model,
                            torch::optim::Optimizer& optimizer);

}  // namespace trestle
