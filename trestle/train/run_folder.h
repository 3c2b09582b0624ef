#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "trestle/base/file_lock.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_checkpoint.h"

// Where a run keeps what it makes.
namespace trestle::train {

struct RunFolder {
  std::filesystem::path path;
  std::shared_ptr<const FileLock> lock = {};  // held by who writes into it; null for who reads

  // The recipe with every field.
  std::filesystem::path recipe() const { return path / "recipe.toml"; }
  // Written and read by metrics.h.
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  // What the run said: run_log.h.
  std::filesystem::path log() const { return path / "log.txt"; }
  // Chrome trace: simulated, measured.
  std::filesystem::path timeline() const { return path / "timeline.json"; }
  std::filesystem::path timeline_picture() const { return path / "timeline.svg"; }
  std::filesystem::path curve() const { return path / "curve.svg"; }
  std::filesystem::path environment() const { return path / "environment.json"; }
  // The best epoch's weights.
  std::filesystem::path best() const { return path / "best.safetensors"; }
  // Those of the best few, where more than one is kept.
  std::filesystem::path bests() const { return path / "best"; }
  // Where the run goes on from: checkpoint/training_checkpoint.h.
  std::filesystem::path last() const { return path / "last"; }
  // Of one epoch, from 1.
  std::filesystem::path picture(std::int64_t epoch) const;
};

// Throws UsageError, with what a name may hold, for one that cannot be a folder's.
void check_run_name(const std::string& name);

// Makes "<runs>/<name>", or "<name>_2", "<name>_3", ... where that is taken: an earlier run is
// never written over. Locks it and writes recipe.toml into it. Throws FileError, and UsageError for
// a name that check_run_name() refuses.
RunFolder make_run_folder(const recipe::Recipe& recipe);

// An existing one. Throws UsageError, with what to give instead, for a folder that is none.
RunFolder open_run_folder(const std::filesystem::path& path);

// Takes the folder's lock. Throws StateError where another process trains in it.
void lock_run_folder(RunFolder& folder);

// The file of these weights of a run, or the checkpoint that holds them. Throws UsageError where they were not saved yet.
std::filesystem::path saved_weights(const RunFolder& folder, Checkpoint which);

// The recipe in a run folder, named as the folder is.
recipe::Recipe recipe_of(const RunFolder& folder);

}  // namespace trestle::train
