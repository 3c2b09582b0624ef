#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// Evaluates the weights of a run on validation data.
//
//   train::EvaluateResult result = train::evaluate({.run = "runs/unet_quick"});
//   std::cout << result.metric_name << " " << result.metric << "\n";
namespace trestle::train {

struct EvaluateOptions {
  std::filesystem::path run;                 // a run folder, or a file of weights in one
  Checkpoint checkpoint = Checkpoint::Best;  // of a run folder
  // Fields of the run's recipe, as set_field() takes them: {{"data.folder", "other"}}.
  std::vector<std::pair<std::string, std::string>> changes = {};
  models::OwnModels models = {};
  UserParts user_parts = {};
  // Called after each batch with (batches done, all).
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct EvaluateResult {
  std::filesystem::path weights;       // the file
  std::int64_t epoch = 0, step = 0;    // of the training so far; 0 = not known
  std::vector<std::string> data = {};  // their paths; empty for data without files
  bool others = false;                 // not the run's own data
  bool synthetic_data = false;
  std::int64_t examples = 0;
  double validation_loss = 0;
  std::string metric_name = {};
  double metric = 0;
  double seconds = 0;
};

// On the run's own validation data the results equal those in metrics.jsonl for the epoch of these
// weights, to the bit on the same devices. If `changes` name other data, all their examples are
// evaluated, or those of their own validation split (the test files of MNIST, a folder val/).
// Writes nothing and synthesizes no data.
//
// Throws UsageError for a folder that is not a run or has no such weights yet, for missing data,
// for data without validation examples, and for a key of [data] that the data set does not read;
// FormatError for invalid weights or data.
EvaluateResult evaluate(const EvaluateOptions& options);

// One JSON line:
//
//     {"weights": ..., "epoch": 5, "step": 120, "examples": 20,
//      "validation_loss": 0.2, "dice": 0.9}
std::string to_json(const EvaluateResult& result);

}  // namespace trestle::train
