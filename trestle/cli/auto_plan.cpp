#include "trestle/cli/auto_plan.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/mesh/layout/mesh_layout.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/run_folder/run_folder.h"

namespace trestle::cli {

namespace {

namespace fs = std::filesystem;

// A field that the plan chooses, and what to give to --keep instead.
struct PlannedField {
  std::string_view field;
  std::string_view keep;
};
constexpr std::array planned_fields = {
    PlannedField{"mesh.pipeline", "pipeline=2"},
    PlannedField{"mesh.replicate", "data=2,level=0"},
    PlannedField{"mesh.shard", "data=2,level=3"},
    PlannedField{"mesh.tensor", "tensor=2"},
    PlannedField{"mesh.shard_level", "level=1 (optimizer_state), 2 (gradients) or 3 (parameters)"},
    PlannedField{"mesh.sequence_parallel", "sequence_parallel=yes"},
    PlannedField{"pipeline.balance", "pipeline=2"},
    PlannedField{"pipeline.micro_batches", "micro_batch=4, the examples of each"},
    PlannedField{"pipeline.split_size", "micro_batch=4"},
    PlannedField{"pipeline.schedule", "schedule=1f1b"},
    PlannedField{"pipeline.stages_per_rank", "schedule=1f1b"},
    PlannedField{"pipeline.recompute", "recompute=all"},
    PlannedField{"pipeline.checkpoint", "recompute=selective"},
    PlannedField{"pipeline.checkpoint_segments", "recompute=all"}};

std::string full_name(const std::string& name) {
  const recipe::Field* field = recipe::find_field(name);
  return field == nullptr ? name : field->name();
}

bool is_planned(const FieldChanges& flags, recipe::Recipe recipe) {
  for (const auto& [name, value] : flags)
    if (full_name(name) == "plan.auto") recipe::set_field(recipe, name, value);
  return recipe.plan.automatic;
}

// The first line of a plan for ranks. The recipe's name, the report and the recipe are below it.
constexpr std::string_view plan_heading = "plan of trestle train --auto\n";

bool is_number(const std::string& value) {
  return !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

FieldChanges flags_of_planned(const FieldChanges& flags, const recipe::Recipe& recipe) {
  if (!is_planned(flags, recipe)) return flags;
  FieldChanges changes;
  for (const auto& [name, value] : flags) {
    const std::string field = full_name(name);
    for (const PlannedField& chosen : planned_fields)
      if (chosen.field == field)
        throw UsageError(text("'", field, "' is what --auto chooses, and ", value, " is given"),
                         {.hint = text("Leave --auto out, or keep it in the search: --keep ",
                                       chosen.keep, ".")});
    const bool count = field == "devices.use" && is_number(value);
    if (count && value.find_first_not_of('0') == std::string::npos)
      throw UsageError(text("--devices ", value, ": a plan needs at least one device"),
                       {.hint = "Give a number from 1, or leave it out for the recipe's devices."});
    changes.emplace_back(count ? "plan.device_count" : name, value);
  }
  return changes;
}

void check_devices_of_planned(const FieldChanges& flags, int ranks) {
  if (ranks == 0) return;
  for (const auto& [name, value] : flags) {
    if (full_name(name) != "plan.device_count" || value == text(ranks)) continue;
    throw UsageError(text("--devices ", value, " has no effect: each of the ", ranks,
                          " ranks has one device of the plan"),
                     {.hint = "Leave --devices or --ranks out. --devices alone starts the ranks "
                              "that the plan needs."});
  }
}

void check_alone_with_plan(const std::string& mesh, const std::string& deepspeed) {
  if (!deepspeed.empty())
    throw UsageError("--deepspeed and --auto both choose how the state is sharded",
                     {.hint = "Leave one of them out; --keep level=2 keeps a level of ZeRO."});
  if (mesh.empty()) return;
  std::vector<std::string> keep;
  std::int64_t data = 1;
  const mesh::MeshLayout layout = mesh::parse_mesh(mesh);
  for (const mesh::Dimension& dimension : layout.dimensions()) {
    if (dimension.name == "pipeline" || dimension.name == "tensor")
      keep.push_back(text(dimension.name, "=", dimension.size));
    else
      data *= dimension.size;
  }
  if (data > 1) keep.push_back(text("data=", data));
  throw UsageError(text("--mesh ", mesh, " lays out the ranks, and so does --auto"),
                   {.hint = text("Leave one of them out. The degrees are kept by --keep ",
                                 join(keep, ","), ".")});
}

void refuse_plan_on_resume(const FieldChanges& flags) {
  for (const auto& [name, value] : flags)
    if (full_name(name).starts_with("plan."))
      throw UsageError(text("'", full_name(name), "' has no effect with --resume: a run keeps the ",
                            "plan that it began with"),
                       {.hint = "Leave it out. The plan is in the run's recipe.toml, and --mesh "
                                "changes it."});
}

PlanForRanks::PlanForRanks(const recipe::Recipe& recipe, const std::string& report)
    : file_(launch::move_above_stdio(memfd_create("trestle-plan", MFD_CLOEXEC),
                                     "a file for the plan")) {
  train::check_run_name(recipe.name);
  const std::string content =
      text(plan_heading, recipe.name, "\n", trim(report), "\n", recipe::to_toml(recipe));
  for (std::string_view rest = content; !rest.empty();) {
    const ssize_t count = write(file_.get(), rest.data(), rest.size());
    if (count < 0 && errno != EINTR) launch::throw_errno("a file for the plan");
    if (count > 0) rest.remove_prefix(static_cast<std::size_t>(count));
  }
}

fs::path PlanForRanks::file() const { return text("/proc/", getpid(), "/fd/", file_.get()); }

train::ChosenPlan read_plan_for_ranks(const fs::path& file) {
  const std::string content = read_text_file(file);
  if (!content.starts_with(plan_heading))
    throw UsageError(text("--planned ", file.string(), ": is no plan of `trestle train --auto`"));
  const std::size_t name = plan_heading.size(), report = content.find('\n', name) + 1,
                    toml = content.find('\n', report) + 1;
  return {.recipe = recipe::parse_recipe(std::string_view(content).substr(toml),
                                         content.substr(name, report - 1 - name) + ".toml"),
          .report = content.substr(report, toml - report)};
}

}  // namespace trestle::cli
