#pragma once

#include <filesystem>
#include <string>

#include "trestle/cli/verbs.h"
#include "trestle/launch/descriptors.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/trainer.h"

// `trestle train --auto`: a run whose plan is chosen before it.
namespace trestle::cli {

// The flags of a recipe with `auto` in [plan]: --devices N becomes `device_count` in [plan]. Throws
// UsageError, with the word of --keep that does the same, for a flag of what the plan chooses, and
// for --devices 0. Other recipes: the flags as they are.
FieldChanges flags_of_planned(const FieldChanges& flags, const recipe::Recipe& recipe);

// Throws UsageError for `device_count` in these flags if it is not the number of ranks, each of
// which has one device of the plan. No ranks are requested: 0.
void check_devices_of_planned(const FieldChanges& flags, int ranks);

// Throws UsageError for --mesh or --deepspeed beside `auto`; both lay out the ranks.
void check_alone_with_plan(const std::string& mesh, const std::string& deepspeed);

// Throws UsageError for a flag of [plan]: a resumed run keeps its plan.
void refuse_plan_on_resume(const FieldChanges& flags);

// A chosen plan for the processes of its ranks, in a file that has no name in any folder: it ends
// with this object or with the process, however that ends.
class PlanForRanks {
 public:
  // The report is one line.
  PlanForRanks(const recipe::Recipe& recipe, const std::string& report);

  // The file, for --planned: "/proc/1234/fd/5".
  std::filesystem::path file() const;

 private:
  launch::Descriptor file_;
};

// Reads what PlanForRanks wrote. Throws UsageError for another file.
train::ChosenPlan read_plan_for_ranks(const std::filesystem::path& file);

}  // namespace trestle::cli
