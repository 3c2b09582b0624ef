#pragma once

#include <string>

#include "trestle/cli/verbs.h"

// `trestle view RECIPE --split`: the picture of a tensor split.
namespace trestle::cli {

struct SplitArguments {
  bool split = false;
  std::string mesh = {};
  FieldChanges changes = {};
};

// `arguments` must live as long as the verb.
void add_split_flags(Verb verb, SplitArguments& arguments, const RunOptions& options);

// Throws UsageError for a flag of the split without --split.
void refuse_split_flags(const Verb& verb);

// Draws the split of a recipe, or of a run folder's recipe. Prints it as text or JSON, and writes
// it to `out`, unless that is empty. Returns the exit code.
int view_split(const std::string& recipe, const SplitArguments& arguments, const std::string& out,
               bool json, const RunOptions& options);

}  // namespace trestle::cli
