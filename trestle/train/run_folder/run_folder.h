#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "trestle/base/file_lock.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// The folder of a run and its files.
namespace trestle::train {

struct RunFolder {
  std::filesystem::path path;
  std::shared_ptr<const FileLock> lock = {};  // held by the process that writes into it

  // The recipe with every field.
  std::filesystem::path recipe() const { return path / "recipe.toml"; }
  // The report on the run's plan, where a planner chose it: a JSON object.
  std::filesystem::path plan() const { return path / "plan.json"; }
  // Written and read by metrics.h.
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  // The log: run_log.h.
  std::filesystem::path log() const { return path / "log.txt"; }
  // A Chrome trace: predicted and measured step.
  std::filesystem::path timeline() const { return path / "timeline.json"; }
  std::filesystem::path timeline_picture() const { return path / "timeline.svg"; }
  std::filesystem::path curve() const { return path / "curve.svg"; }
  std::filesystem::path environment() const { return path / "environment.json"; }
  // The best epoch's weights.
  std::filesystem::path best() const { return path / "best.safetensors"; }
  // The weights of the best few epochs, where more than one is kept.
  std::filesystem::path bests() const { return path / "best"; }
  // The checkpoint that --resume reads: checkpoint/training_checkpoint.h.
  std::filesystem::path last() const { return path / "last"; }
  // The same as DeepSpeed's folder, where `deepspeed_checkpoints` is set.
  std::filesystem::path deepspeed() const { return path / "deepspeed"; }
  // The picture of one epoch, from 1.
  std::filesystem::path picture(std::int64_t epoch) const;
  // The text that a language model wrote after one epoch, from 1.
  std::filesystem::path sample(std::int64_t epoch) const;
};

// Throws UsageError, with the allowed characters, for a name that is not allowed for a folder.
void check_run_name(const std::string& name);

// Creates "<runs>/<name>", or "<name>_2", "<name>_3", ... if it exists: an earlier run is never
// overwritten. Locks the folder and writes recipe.toml into it. Throws FileError, and UsageError
// for a name that check_run_name() refuses.
RunFolder make_run_folder(const recipe::Recipe& recipe);

// Opens an existing run folder. Throws UsageError, with what to give instead, for another folder.
RunFolder open_run_folder(const std::filesystem::path& path);

// Locks the folder. Throws StateError where another process trains in it.
void lock_run_folder(RunFolder& folder);

// The file of these weights of a run, or the checkpoint that holds them. Throws UsageError where
// they were not saved yet.
std::filesystem::path saved_weights(const RunFolder& folder, Checkpoint which);

// The recipe in a run folder, named as the folder is.
recipe::Recipe recipe_of(const RunFolder& folder);

}  // namespace trestle::train
