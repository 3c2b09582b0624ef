#pragma once

#include <filesystem>
#include <string>

#include "trestle/cli/verbs.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/trainer.h"

// `trestle train --auto`: a run whose plan is chosen before it.
namespace trestle::cli {

// The flags of a recipe with `auto` in [plan]: --devices N becomes `device_count` in [plan]. Throws
// UsageError, with the word of --keep that does the same, for a flag of what the plan chooses.
// Other recipes: the flags as they are.
FieldChanges flags_of_planned(const FieldChanges& flags, const recipe::Recipe& recipe);

// Throws UsageError for --mesh or --deepspeed beside `auto`; both lay out the ranks.
void check_alone_with_plan(const std::string& mesh, const std::string& deepspeed);

// Throws UsageError for a flag of [plan]: a resumed run keeps its plan.
void refuse_plan_on_resume(const FieldChanges& flags);

// A chosen plan in a temporary folder, for the processes of its ranks. The folder is removed with
// the object.
class PlanForRanks {
 public:
  PlanForRanks(const recipe::Recipe& recipe, const std::string& report);
  ~PlanForRanks();
  PlanForRanks(const PlanForRanks&) = delete;
  PlanForRanks& operator=(const PlanForRanks&) = delete;

  // The recipe's file, for --planned.
  std::filesystem::path file() const;

 private:
  std::filesystem::path folder_;
  std::string name_;
};

// Reads what PlanForRanks wrote.
train::ChosenPlan read_plan_for_ranks(const std::filesystem::path& file);

}  // namespace trestle::cli
