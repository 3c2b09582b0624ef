#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "trestle/checkpoint/files/checkpoint_index.h"
#include "trestle/checkpoint/files/save_ranks.h"

// The protocol by which ranks write one checkpoint folder together, for any contents. Torch-free.
// Internal to trestle/checkpoint.
//
//  1. Rank 0 creates "<folder>.tmp". All ranks wait for that.
//  2. Each rank writes and flushes its files there, and sends their contents or an error to the
//  other ranks.
//  3. Rank 0 checks that each tensor is complete, writes the index, and exchanges the folders.
//  4. All ranks wait for that, too.
//
// An error of one rank is thrown on all, with that rank's number. The old checkpoint is then
// unchanged, and the incomplete new one is removed.
namespace trestle::checkpoint {

struct SaveTask {
  // Writes this rank's files into the folder, and returns their contents.
  std::function<CheckpointIndex(const std::filesystem::path& fresh)> write_shard = {};
  std::string state = "{}";  // a JSON object; that of rank 0 is kept
  // Must be the same on all ranks: "step 12, epoch 3".
  std::string agreed = {};
  // For tests: called with the name of each step when it is done.
  std::function<void(std::string_view)> after = {};
};

// All ranks call it with one folder on a shared file system. Throws UsageError or FileError, on
// all.
void save_over_ranks(const std::filesystem::path& folder, const SaveTask& task,
                     const SaveRanks& ranks);

}  // namespace trestle::checkpoint
