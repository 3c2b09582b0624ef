#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "trestle/train/run_checkpoint.h"

// A run's weights as a file for Python, or for another run.
//
//   train::export_weights({.from = "runs/resnet18_mnist", .out = "resnet18.pt"});
//
// In Python: model.load_state_dict(torch.load("resnet18.pt", weights_only=True)).
namespace trestle::train {

struct ExportOptions {
  // A run folder, the folder last/ of one, a checkpoint's folder in however many parts, or a file of
  // weights.
  std::filesystem::path from;
  std::filesystem::path out;            // .pt or .pth: as torch.save writes it; .safetensors
  Checkpoint which = Checkpoint::Best;  // of a run folder
  // Whose names the tensors get: "" = as they are, or one of checkpoint::name_table_names().
  std::string names = {};
};

struct ExportResult {
  std::filesystem::path from;  // the file or the checkpoint that was read
  std::size_t tensors = 0;
  std::int64_t numbers = 0;  // in all of them
};

// Throws UsageError for a folder that is no run's or has no such weights yet, for an ending that is
// not known, and for names that these weights do not have; FormatError for weights that are not
// right, FileError where the system refuses. What stood at `out` before stays then.
ExportResult export_weights(const ExportOptions& options);

}  // namespace trestle::train
