#include "trestle/train/recipe_schedule.h"

#include <algorithm>
#include <filesystem>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"

namespace trestle::train {
namespace {

const schedule::ScheduleInfo& known(const recipe::Recipe& recipe) {
  if (recipe.pipeline.schedule == "auto")
    throw UsageError(
        "schedule = \"auto\" is searched when a run begins, and this needs its stages",
        {.hint = "Name a schedule in the recipe, or make the table first: trestle "
                 "schedules RECIPE --save-csv best.csv, and schedule = \"best.csv\"."});
  std::vector<std::string> names;
  for (const auto& info : schedule::known_schedules()) {
    if (info.name == recipe.pipeline.schedule) return info;
    names.push_back(info.name);
  }
  names.insert(names.end(), {"auto", "FILE.csv"});
  throw_unknown("schedule", recipe.pipeline.schedule, names);
}

void refuse_stages_per_rank(const recipe::Recipe& recipe) {
  if (recipe.pipeline.stages_per_rank == 0) return;
  throw UsageError(text("'stages_per_rank' in [pipeline] has no effect beside the table of ",
                        recipe.pipeline.schedule, ", which has a rank for each stage"),
                   {.hint = "Leave it out."});
}

}  // namespace

schedule::Schedule read_table(const std::filesystem::path& file) {
  return schedule::read_csv(read_text_file(file), file.string(), schedule::TableUse::Pipeline);
}

bool searches_schedule(const recipe::Recipe& recipe) {
  return recipe.pipeline.schedule == "auto" && recipe.pipeline.table.empty();
}

std::optional<schedule::Schedule> table_of(const recipe::Recipe& recipe) {
  const std::filesystem::path file = recipe.pipeline.schedule;
  const bool is_file = file.extension() == ".csv";
  if (!recipe.pipeline.table.empty()) {
    if (!is_file && recipe.pipeline.schedule != "auto")
      throw UsageError(text("'table' in [pipeline] is not that of the schedule '",
                            recipe.pipeline.schedule, "'"),
                       {.hint = "Leave it out, or set schedule = \"auto\"."});
    refuse_stages_per_rank(recipe);
    return schedule::read_csv(join(recipe.pipeline.table, "\n"), "'table' in [pipeline]",
                              schedule::TableUse::Pipeline);
  }
  if (!is_file) return std::nullopt;
  if (!std::filesystem::is_regular_file(file))
    throw UsageError(
        text("'schedule' in [pipeline]: there is no file ", file.string()),
        {.hint = "Write one with trestle schedules RECIPE --save-csv FILE.csv, or give "
                 "the name of a schedule."});
  refuse_stages_per_rank(recipe);
  return read_table(file);
}

recipe::Recipe with_table(recipe::Recipe recipe) {
  if (const auto table = table_of(recipe)) recipe.pipeline.table = rows_of(*table);
  return recipe;
}

std::vector<std::string> rows_of(const schedule::Schedule& table) {
  return split(trim(schedule::to_csv(table)), '\n');
}

int stages_per_rank(const recipe::Recipe& recipe) {
  const auto table = table_of(recipe);
  if (!table && recipe.pipeline.schedule == "auto") (void)known(recipe);
  if (!table)
    return schedule::stages_per_rank(recipe.pipeline.schedule,
                                     static_cast<int>(recipe.pipeline.stages_per_rank));
  std::ptrdiff_t most = 1;
  for (int rank = 0; rank < table->rank_count(); ++rank)
    most =
        std::max(most, std::count(table->rank_of_stage.begin(), table->rank_of_stage.end(), rank));
  return static_cast<int>(most);
}

std::size_t stage_count(const recipe::Recipe& recipe, std::size_t ranks) {
  const auto& balance = recipe.pipeline.balance;
  if (!balance.empty()) return balance.size();
  if (const auto table = table_of(recipe)) return static_cast<std::size_t>(table->stages);
  return ranks * static_cast<std::size_t>(stages_per_rank(recipe));
}

std::vector<int> ranks_of_stages(const recipe::Recipe& recipe, std::size_t stages) {
  if (const auto table = table_of(recipe)) {
    if (static_cast<std::size_t>(table->stages) == stages) return table->rank_of_stage;
    throw UsageError(text(recipe.pipeline.schedule, " is a table of ", table->stages,
                          " stages, and 'balance' in [pipeline] has ", stages),
                     {.hint = "Leave 'balance' out, or give one entry for each stage."});
  }
  return schedule::ranks_of_stages(recipe.pipeline.schedule, static_cast<int>(stages),
                                   stages_per_rank(recipe));
}

std::size_t rank_count(const recipe::Recipe& recipe, std::size_t stages) {
  const std::vector<int> ranks = ranks_of_stages(recipe, stages);
  return static_cast<std::size_t>(1 + *std::max_element(ranks.begin(), ranks.end()));
}

bool splits_backward(const recipe::Recipe& recipe) {
  if (searches_schedule(recipe)) return true;
  const auto table = table_of(recipe);
  return table ? schedule::splits_backward(*table) : known(recipe).splits_backward;
}

bool all_forwards_first(const recipe::Recipe& recipe) {
  if (searches_schedule(recipe)) return true;
  const auto table = table_of(recipe);
  return table ? schedule::all_forwards_first(*table) : known(recipe).all_forwards_first;
}

schedule::Schedule compute_actions(const recipe::Recipe& recipe, int stages, int micro_batches) {
  schedule::GenerateOptions options{
      .stages = stages,
      .micro_batches = micro_batches,
      .backward_order = schedule::parse_backward_order(recipe.pipeline.backward_order)};
  const auto table = table_of(recipe);
  if (!table) {
    options.stages_per_rank = stages_per_rank(recipe);
    return schedule::generate(recipe.pipeline.schedule, options);
  }
  if (table->micro_batches == micro_batches && table->stages == stages) return *table;
  return schedule::place(schedule::generate("gpipe", options),
                         ranks_of_stages(recipe, static_cast<std::size_t>(stages)),
                         table->rank_count());
}

}  // namespace trestle::train
