#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/train/run_checkpoint.h"
#include "trestle/train/user_parts.h"

// How good a run's weights are.
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
  std::vector<std::string> data = {};  // where they lie; empty for data that lie nowhere
  bool others = false;                 // other data than the run's own
  bool synthetic_data = false;
  std::int64_t examples = 0;
  double validation_loss = 0;
  std::string metric_name = {};
  double metric = 0;
  double seconds = 0;
};

// On the run's own validation data the numbers are those that its metrics.jsonl has for the epoch of
// these weights, to the bit on the same devices. Where `changes` name other data, all their examples
// count, but for data sets that have a part of their own for validation (the test files of MNIST, a
// folder val/): then it is that part. Nothing is written, and no synthetic data are made.
//
// Throws UsageError for a folder that is no run's or has no such weights yet, for data that are
// missing or of which nothing is kept for validation, and for a key of [data] that says nothing of
// the run's data set; FormatError for weights or data that are not right.
EvaluateResult evaluate(const EvaluateOptions& options);

// One line: {"weights": ..., "epoch": 5, "step": 120, "examples": 20, "validation_loss": 0.2, "dice": 0.9}
std::string to_json(const EvaluateResult& result);

}  // namespace trestle::train
