#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "trestle/checkpoint/files/checkpoint_index.h"
#include "trestle/checkpoint/files/save_ranks.h"

// How ranks write one checkpoint folder together, whatever lies in its files. No torch in here.
// Internal to trestle/checkpoint.
//
//  1. Rank 0 makes "<folder>.tmp". All ranks wait for that.
//  2. Each rank writes and flushes its files there, and tells the others what they hold, or what
//     went wrong.
//  3. Rank 0 checks that each tensor is whole, writes the index, and exchanges the folders.
//  4. All ranks wait for that, too.
//
// What goes wrong on one rank is thrown on all, with that rank's number: then the older checkpoint is
// as it was, and the half of the newer one is removed.
namespace trestle::checkpoint {

struct SaveTask {
  // Writes this rank's files into the folder, and says what they hold.
  std::function<CheckpointIndex(const std::filesystem::path& fresh)> write_part = {};
  std::string state = "{}";  // a JSON object; that of rank 0 is kept
  // What must be the same on all ranks, in words: "step 12, epoch 3".
  std::string agreed = {};
  // For tests: called with the name of each step when it is done.
  std::function<void(std::string_view)> after = {};
};

// Called by all ranks, with one folder that all of them see. Throws UsageError or FileError, on all.
void save_over_ranks(const std::filesystem::path& folder, const SaveTask& task,
                     const SaveRanks& ranks);

}  // namespace trestle::checkpoint
