#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "trestle/train/run_folder/run_checkpoint.h"

// Exports the weights of a run to a file for Python, or for another run.
//
//   train::export_weights({.from = "runs/resnet18_mnist", .out = "resnet18.pt"});
//
// In Python: model.load_state_dict(torch.load("resnet18.pt", weights_only=True)).
namespace trestle::train {

struct ExportOptions {
  // A run folder, its folder last/, a checkpoint folder with any number of parts, or a file of
  // weights.
  std::filesystem::path from;
  std::filesystem::path out;            // .pt or .pth as by torch.save, or .safetensors
  Checkpoint which = Checkpoint::Best;  // of a run folder
  // The naming scheme of the tensors: "" = unchanged, or one of checkpoint::name_table_names().
  std::string names = {};
};

struct ExportResult {
  std::filesystem::path from;  // the file or the checkpoint that was read
  std::size_t tensors = 0;
  std::int64_t numbers = 0;  // elements of all tensors
};

// Throws UsageError for a folder that is not a run or has no such weights yet, for an unknown
// ending, and for names that do not fit these weights; FormatError for invalid weights, FileError
// if the system refuses. A file at `out` is then unchanged.
ExportResult export_weights(const ExportOptions& options);

}  // namespace trestle::train
