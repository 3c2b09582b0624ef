#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trestle/base/overwrite.h"
#include "trestle/base/units.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// Exports the weights of a run to a file for Python, or for another run.
//
//   train::export_weights({.from = "runs/resnet18_mnist", .out = "resnet18.pt"});
//
// In Python: model.load_state_dict(torch.load("resnet18.pt", weights_only=True)).
namespace trestle::train {

struct ExportOptions {
  // A run folder, its folder last/, a checkpoint folder with any number of parts, a folder of
  // weights that another program wrote, or a file of weights.
  std::filesystem::path from;
  std::filesystem::path out;            // .pt or .pth as by torch.save, .safetensors, or a folder
  Checkpoint which = Checkpoint::Best;  // of a run folder
  // The naming scheme of the tensors: "" = unchanged, or one of checkpoint::name_table_names().
  std::string names = {};
  std::filesystem::path adapter = {};  // of a language model: see TextModelOptions::adapters
  // Without it `out` is one file. With it `out` is a new folder, as Hugging Face's
  // save_pretrained() writes it, with files of at most this number of bytes.
  std::optional<Bytes> largest_file = {};
  Overwrite overwrite = Overwrite::Refuse;  // of a file at `out`; never of a run's own files
};

struct ExportResult {
  std::filesystem::path from;  // the file or the checkpoint that was read
  std::size_t tensors = 0;
  std::int64_t numbers = 0;  // elements of all tensors
};

// Throws UsageError for a folder that is not a run or has no such weights yet, for an unknown
// ending, for names that do not fit these weights, and for an existing file at `out`; FormatError
// for invalid weights, FileError if the system refuses. A file at `out` is then unchanged.
ExportResult export_weights(const ExportOptions& options);

}  // namespace trestle::train
