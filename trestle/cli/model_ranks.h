#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "trestle/cli/ranks.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/run_ranks.h"

// A verb that opens a language model, on one process or on tensor ranks that split its layers.
namespace trestle::cli {

struct ModelRanks {
  std::string mesh;  // --mesh
  RankOptions ranks;
  std::filesystem::path model;
  train::TextModelOptions options;  // without devices and ranks
  std::string devices;              // --devices; empty = the default
};

// Adds --mesh and --ranks. `note` ends the help of --ranks.
void add_model_rank_flags(Verb verb, ModelRanks& ranks, const std::string& note = "");

// One of the ranks, or one process alone.
struct ModelRank {
  const World* world = nullptr;
  train::RunRanks ranks;
  train::TextModelOptions options;  // with this rank's slices and devices
  bool is_process() const;          // one of several
};

// Calls `prepare`, which throws UsageError for invalid flags and fills in the model, its options
// and devices. Then calls `work` on each rank, as on_ranks(), and returns its exit code. Throws
// UsageError for another mesh than tensor ranks, for a model that they cannot split, and for other
// numbers of ranks or devices; before the ranks are started here.
int on_model_ranks(ModelRanks& wanted, const std::function<void()>& prepare,
                   const std::function<int(const ModelRank&)>& work);

}  // namespace trestle::cli
