#include "trestle/train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <tuple>

#include "trestle/base/error.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/auto_plan.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/mesh_flags.h"
#include "trestle/cli/output.h"
#include "trestle/cli/ranks.h"
#include "trestle/cli/verbs.h"
#include "trestle/cli/without_signals.h"
#include "trestle/comm/world.h"
#include "trestle/deepspeed/config/to_recipe.h"
#include "trestle/device/spin_guard.h"
#include "trestle/launch/rank_environment.h"
#include "trestle/megatron/to_recipe.h"
#include "trestle/train/measure.h"
#include "trestle/train/mesh_options.h"
#include "trestle/train/planner/choose_plan.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/setup.h"
#include "trestle/train/sweep/sweep_points.h"
#include "trestle/train/sweep/sweep_record.h"
#include "trestle/train/without_effect.h"

namespace trestle::cli {

namespace {

struct TrainArguments {
  std::string recipe;
  std::string resume;
  std::optional<std::string> name;
  std::string mesh;
  std::string deepspeed;
  std::string megatron;
  RankOptions ranks;
  bool json = false;
  bool quiet = false;
  bool dry_run = false;
  std::string planned;  // for a rank: the file of PlanForRanks
  int measure = 0;      // steps; 0 = train
  FieldChanges changes;
  std::vector<std::string> settings;  // of --set
};

// After a run: 0, or the exit code for the reason why it stopped between two steps.
int exit_code(const train::TrainResult& result, const World* world) {
  if (result.finished) return 0;
  if (const int code = code_of_signals(world); code != 0) return code;
  const bool shows = world == nullptr || world->rank() == 0;
  const std::string why = why_output_was_lost();
  if (!why.empty() && shows)
    throw Error(why, {.hint = "The run was stopped and saved. Resume it: trestle train --resume " +
                              shell_word(result.run_folder.string())});
  return 1;
}

void say_on_terminal(const std::string& words) {
  if (isatty(STDERR_FILENO) != 0) std::cerr << words << std::endl;
}

// The hooks of one rank; `world` is null for a single process.
train::TrainHooks hooks_for(const World* world, train::Progress* progress,
                            const RunOptions& options) {
  train::TrainHooks hooks;
  hooks.world = world;
  const bool first = world == nullptr || world->rank() == 0;
  hooks.progress = progress;
  if (first) {
    hooks.begins = finish_steps_on_interrupt;
  } else if (world->backend() != "threads") {
    hooks.begins = [] { stop_on_interrupt(""); };  // rank 0 prints the message
  }
  hooks.should_stop = [first] { return interrupted() || (first && !output_arrives()); };
  hooks.on_synthesized = should_continue;
  hooks.models = options.models;
  hooks.user_parts = user_parts_of(options);
  hooks.choose_plan = [world, own = hooks](const recipe::Recipe& recipe) {
    return train::choose_plan(recipe, own, {.world = world, .says = say_on_terminal});
  };
  return hooks;
}

recipe::Recipe with_changes(recipe::Recipe recipe, const FieldChanges& changes) {
  for (const auto& [name, value] : changes) recipe::set_field(recipe, name, value);
  return recipe;
}

recipe::Recipe recipe_of(const TrainArguments& arguments) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  if (arguments.name) recipe.name = *arguments.name;
  return recipe;
}

// The recipe without the flags' changes. Throws UsageError for invalid arguments or an invalid
// recipe, before any rank is started.
recipe::Recipe read_checked_recipe(const Verb& verb, const TrainArguments& arguments) {
  if (arguments.recipe.empty() == arguments.resume.empty())
    throw UsageError("give either a recipe to start from, or --resume RUN_FOLDER",
                     {.hint = "For example: trestle train recipes/unet_quick.toml"});
  if (!arguments.resume.empty())
    refuse_without_effect(verb, {"--name", "--runs", "--dry-run", "--deepspeed"}, "with --resume");
  if (arguments.json && arguments.quiet) throw UsageError("give --json or --quiet, not both");
  if (arguments.dry_run) {
    refuse_without_effect(verb, {"--max-restarts"}, "with --dry-run");
    if (arguments.deepspeed.empty()) refuse_without_effect(verb, {"--ranks"}, "with --dry-run");
  }
  if (arguments.measure > 0)
    refuse_without_effect(verb, {"--resume", "--name", "--max-restarts", "--dry-run", "--quiet"},
                          "with --measure");
  if (arguments.resume.empty()) return recipe_of(arguments);
  return train::recipe_of(train::open_run_folder(arguments.resume));
}

// Applies DeepSpeed's file to the recipe; it must not contradict the flags in `given`. Returns
// notes to print.
std::vector<std::string> take_deepspeed(const TrainArguments& arguments, const FieldChanges& given,
                                        recipe::Recipe& recipe) {
  const int asked = asked_ranks(arguments.ranks);
  // Tensor ranks share a batch: for the file they are one rank.
  const int ranks = (asked > 0 ? asked : ranks_of(recipe.mesh)) /
                    static_cast<int>(std::max<std::int64_t>(recipe.mesh.tensor, 1));
  const auto run = deepspeed::deepspeed_run(arguments.deepspeed, recipe, ranks, given);
  recipe = with_changes(recipe, run.changes);
  return split(trim(run.description), '\n');
}

// The parsed arguments, before any rank is started.
struct TrainRequest {
  recipe::Recipe recipe;
  recipe::Recipe::Mesh before;     // the mesh of the recipe or the run, without flags
  FieldChanges changes;            // to the recipe or the run
  std::vector<std::string> notes;  // printed before the run's plan
  std::string plan_report = {};    // of the plan that was chosen before
  train::ProgressStyle style = train::ProgressStyle::Silent;
  train::Colours colours = train::Colours::Off;
};

// The fields that flags and --set change. Throws UsageError for a field that both name: one value
// would silently win.
FieldChanges changes_of_flags(const TrainArguments& arguments) {
  FieldChanges changes = arguments.changes;
  for (const std::string& words : arguments.settings) {
    auto setting = train::parse_setting(words);
    for (const auto& [name, value] : changes)
      if (name == setting.first)
        throw UsageError(text("--set ", words, ": '", name, "' is given twice"),
                         {.hint = "Leave one of them out."});
    changes.push_back(std::move(setting));
  }
  return changes;
}

// Refuses flags without effect; keys of a recipe file without effect become notes.
void check_effects(const TrainArguments& arguments, const RunOptions& options,
                   TrainRequest& request) {
  std::vector<std::string> set;
  for (const auto& [name, value] : changes_of_flags(arguments)) set.push_back(name);
  const train::UserParts own = user_parts_of(options);
  train::refuse_without_effect({request.recipe}, set, own);
  if (!arguments.resume.empty()) return;
  for (std::string& note : train::notes_without_effect(request.recipe, set, own))
    request.notes.push_back(std::move(note));
}

void set_style(const TrainArguments& arguments, TrainRequest* request) {
  std::tie(request->style, request->colours) = train::progress_style_of(STDOUT_FILENO);
  if (arguments.json) request->style = train::ProgressStyle::Json;
  if (arguments.quiet) request->style = train::ProgressStyle::Silent;
}

void take_plan(train::ChosenPlan chosen, TrainRequest* request) {
  request->recipe = std::move(chosen.recipe);
  request->before = request->recipe.mesh;
  request->plan_report = std::move(chosen.report);
  request->changes.clear();  // the recipe has them
  request->notes.clear();
}

TrainRequest read_train_request(const Verb& verb, const TrainArguments& arguments,
                                const RunOptions& options) {
  TrainRequest request;
  if (!arguments.planned.empty()) {
    set_style(arguments, &request);
    take_plan(read_plan_for_ranks(arguments.planned), &request);
    return request;
  }
  FieldChanges flags = changes_of_flags(arguments);
  FieldChanges given = changes_of_mesh(arguments.mesh);
  recipe::Recipe& recipe = request.recipe;
  recipe = read_checked_recipe(verb, arguments);
  if (!arguments.resume.empty()) refuse_plan_on_resume(flags);
  flags = flags_of_planned(flags, recipe);
  given.insert(given.end(), flags.begin(), flags.end());
  request.changes = changes_of_mesh_and_flags(arguments.mesh, flags);
  request.before = recipe.mesh;
  recipe = with_changes(recipe, request.changes);
  if (recipe.plan.automatic) {
    check_alone_with_plan(arguments.mesh, arguments.deepspeed);
    check_devices_of_planned(flags, asked_ranks(arguments.ranks));
  }
  check_mesh_alone(arguments.mesh, flags);
  if (!arguments.deepspeed.empty()) request.notes = take_deepspeed(arguments, given, recipe);
  check_effects(arguments, options, request);
  check_shard_level(recipe, flags);
  check_ranks_of_mesh(arguments.mesh, recipe.mesh, asked_ranks(arguments.ranks));
  set_style(arguments, &request);
  return request;
}

// Prints the notes, and adapts the recipe's devices to `ranks` ranks. `progress` may be null.
void adapt_to_ranks(TrainRequest& request, int ranks, train::Progress* progress) {
  for (const std::string& note : request.notes)
    if (progress) progress->note(note);
  if (request.recipe.plan.automatic) return;  // the plan sets the devices
  for (auto& change : devices_of_mesh(request.recipe, request.before, ranks, request.changes)) {
    if (progress) progress->note(note_of_devices(request.recipe, ranks, change.second));
    recipe::set_field(request.recipe, change.first, change.second);
    request.changes.push_back(std::move(change));
  }
}

// Throws UsageError for a request that every rank would refuse. It is called before a rank is
// started, because hundreds of processes can use up a machine's memory.
void check_request(TrainRequest request, int ranks, const RunOptions& options) {
  adapt_to_ranks(request, ranks, nullptr);
  train::check_training(request.recipe, user_parts_of(options));
  train::check_mesh(request.recipe.mesh, ranks);
  const auto stages = static_cast<std::size_t>(ranks / request.recipe.mesh.ranks_of_stage());
  if (stages > 1) train::check_balance(request.recipe, stages, "rank");
  // Refuses a number of tensor ranks that does not divide the heads. No layer is made.
  if (request.recipe.mesh.tensor > 1)
    (void)train::make_model(request.recipe, options.models,
                            train::split_on_paper(request.recipe.mesh));
  if (const int devices = virtual_devices_of(request.recipe); devices > 1)
    train::check_device_count(devices, ranks);
}

int print_run_plan(TrainRequest request, const RunOptions& options) {
  if (another_rank_prints()) return 0;
  const auto progress = train::make_progress(request.style, request.colours, std::cout);
  adapt_to_ranks(request, ranks_of(request.recipe.mesh), progress.get());
  train::plan_run(request.recipe, hooks_for(nullptr, progress.get(), options));
  return 0;
}

// Chooses the plan of a run whose ranks this process starts, and prints it. Under a launcher its
// ranks choose it together (train::train()).
void plan_before_ranks(const RankOptions& ranks, const RunOptions& options, TrainRequest* request) {
  const auto progress = train::make_progress(request->style, request->colours, std::cout);
  for (const std::string& note : request->notes) progress->note(note);
  train::ChosenPlan chosen;
  run_without_signals([&] {
    chosen = train::choose_plan(request->recipe, hooks_for(nullptr, progress.get(), options),
                                {.ranks = asked_ranks(ranks), .says = say_on_terminal});
  });
  for (const std::string& line : chosen.reasons) progress->note(line);
  std::cout << std::flush;
  take_plan(std::move(chosen), request);
}

int train_on_rank(TrainRequest request, const std::string& resumed, const World* world,
                  const RunOptions& options) {
  const bool first = world == nullptr || world->rank() == 0;
  const auto progress =
      first ? train::make_progress(request.style, request.colours, std::cout) : nullptr;
  train::TrainHooks hooks = hooks_for(world, progress.get(), options);
  hooks.plan_report = request.plan_report;
  adapt_to_ranks(request, world ? world->size() : 1, progress.get());
  const SpinGuard guard;
  return exit_code(resumed.empty() ? train::train(request.recipe, hooks)
                                   : train::resume(resumed, request.changes, hooks),
                   world);
}

// Prints the durations of some steps. Nothing of the run is written.
int measure_on_rank(TrainRequest request, int steps, const World* world,
                    const RunOptions& options) {
  const bool first = world == nullptr || world->rank() == 0;
  adapt_to_ranks(request, world ? world->size() : 1, nullptr);
  const SpinGuard guard;
  const train::StepTimes times =
      train::measure_steps(request.recipe, {.steps = steps,
                                            .world = world,
                                            .models = options.models,
                                            .user_parts = user_parts_of(options)});
  if (!first) return 0;
  if (request.style == train::ProgressStyle::Json) {
    std::cout << R"({"event":"measured",)" << train::to_json_line(times).substr(1) << std::endl;
    return 0;
  }
  std::cout << "measured  " << format_duration(times.step_seconds()) << " per step, the median of "
            << steps << ", of which the update takes " << format_duration(times.optimizer_seconds)
            << "\n";
  if (request.recipe.pipeline.schedule == "auto")
    std::cout << "          schedule " << times.schedule << " · balance ["
              << join(times.balance, ", ") << "]\n";
  for (const train::DevicePeak& peak : times.peaks)
    std::cout << "          " << peak.device << " · peak " << format_bytes(peak.measured) << "\n";
  std::cout << std::flush;
  return 0;
}

// Prints the recipe of Megatron-LM's flags.
int print_megatron_recipe(const Verb& verb, const TrainArguments& arguments) {
  if (!arguments.recipe.empty() || !arguments.changes.empty())
    throw UsageError(
        "--megatron prints a recipe, and takes neither a recipe nor flags of its fields",
        {.hint = "Save what it prints, and give the flags to `trestle train FILE`."});
  refuse_without_effect(verb,
                        {"--resume", "--name", "--mesh", "--deepspeed", "--max-restarts",
                         "--dry-run", "--json", "--measure", "--quiet", "--set", "--auto"},
                        "with --megatron");
  const std::string recipe = megatron::to_recipe(arguments.megatron, asked_ranks(arguments.ranks));
  if (!another_rank_prints()) std::cout << recipe << std::flush;
  return 0;
}

int perform_train(const Verb& verb, const TrainArguments& arguments, const RunOptions& options,
                  const std::vector<std::string>& words) {
  if (verb.given("--megatron")) return print_megatron_recipe(verb, arguments);
  TrainRequest request;
  try {
    request = read_train_request(verb, arguments, options);
  } catch (const UsageError& error) {  // the same on all ranks of a launcher
    tell_other_machines(error);
    if (another_rank_complains()) return usage_error;
    throw;
  } catch (const Error& error) {
    tell_other_machines(error);
    throw;
  }
  if (arguments.dry_run) return print_run_plan(request, options);
  RankOptions ranks = arguments.ranks;
  ranks.words = words;
  std::optional<PlanForRanks> plan_for_ranks;
  if (request.recipe.plan.automatic && launch::read_rank_environment().world_size == 1) {
    plan_before_ranks(ranks, options, &request);
    if (asked_ranks(ranks) > 1 || ranks_of(request.recipe.mesh) > 1) {
      plan_for_ranks.emplace(request.recipe, request.plan_report);
      ranks.words.insert(ranks.words.end(), {"--planned", plan_for_ranks->file().string()});
    }
  }
  const recipe::Recipe& recipe = request.recipe;
  ranks.files = {arguments.recipe, arguments.deepspeed};
  ranks.default_ranks = ranks_of(recipe.mesh);
  ranks.check = [&](int count) { check_request(request, count, options); };
  ranks.deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(recipe.pipeline.deadline * 1000));
  return on_ranks(ranks, [&](const World* world) {
    if (arguments.measure > 0) return measure_on_rank(request, arguments.measure, world, options);
    return train_on_rank(request, arguments.resume, world, options);
  });
}

}  // namespace

void add_train(Verb app, const RunOptions& options, const std::vector<std::string>& words) {
  Verb verb =
      app.add_verb("train", "Train a model from a recipe; flags override the recipe's fields");
  auto arguments = std::make_shared<TrainArguments>();
  verb.add("recipe", arguments->recipe, "A TOML file, or the name of one in recipes/")
      .type("RECIPE");
  verb.add("--resume", arguments->resume,
           "Resume a run from its last save; the results are bitwise the same")
      .type("RUN_FOLDER");
  verb.add("--name", arguments->name, "The run's name (default: the recipe file's)").type("NAME");
  verb.add(
          "--ranks", arguments->ranks.ranks,
          "Number of ranks, one stage each: 4 (processes) or threads:4. Not needed under torchrun, "
          "srun or trestle launch")
      .type("N");
  verb.add("--mesh", arguments->mesh,
           "The layout of the ranks: pipeline=2,replicate=2 is two pipelines of two stages, each "
           "with half of every batch; shard=2 instead of replicate=2 also shards the training "
           "state (--shard-level). A dimension that is not named has size 1, also with --resume. "
           "Without --ranks this many processes are started")
      .type("NAME=N,...");
  verb.add("--deepspeed", arguments->deepspeed,
           "Take batch, optimizer, precision and ZeRO stage from DeepSpeed's JSON file instead of "
           "the recipe (docs/deepspeed.md)")
      .type("FILE");
  verb.add("--megatron", arguments->megatron,
           "Print the recipe of these flags of Megatron-LM, and do not train; --ranks is its world "
           "size (docs/megatron.md)")
      .type("FLAGS");
  verb.add_number(
          "--max-restarts", {0, 1'000'000},
          [arguments](std::int64_t n) { arguments->ranks.max_restarts = static_cast<int>(n); },
          "How many times --ranks N restarts all processes from the last save after one failed "
          "(default 0)")
      .type("N");
  verb.add_switch("--dry-run", arguments->dry_run,
                  "Print the plan with its predicted time and memory; do not train");
  verb.add_switch(
      "--auto", [arguments] { arguments->changes.emplace_back("plan.auto", "true"); },
      "Choose the split first: measure the layers, simulate every plan for --devices N (or the "
      "recipe's devices), print the best and why, and run it. --keep tensor=1 keeps degrees, "
      "--memory 4GiB is what a device may use, --goal memory wants the smallest peak "
      "(docs/plan.md)");
  verb.add("--planned", arguments->planned, "The plan of these ranks, which `train --auto` wrote")
      .type("FILE")
      .rare();
  verb.add_number(
          "--measure", {1, 100'000},
          [arguments](std::int64_t n) { arguments->measure = static_cast<int>(n); },
          "Time N steps on the first batch, after two to warm up, and print their median and the "
          "devices' peaks; write no run folder")
      .type("N");
  verb.add_switch("--json", arguments->json, "Print one JSON object per line");
  verb.add_switch("--quiet", arguments->quiet, "Print only errors");
  verb.add("--set", arguments->settings,
           "A field and its value, as trestle sweep takes it: --set data.shape=3,64,64 is the same "
           "as --shape 3,64,64")
      .one_value_each()
      .type("KEY=VALUE");
  add_field_flags(verb, arguments->changes, options);
  verb.footer(
      examples({"trestle train recipes/unet_quick.toml",
                "trestle train recipes/unet_quick.toml --epochs 3 --devices virtual:2x512MiB",
                "trestle train recipes/unet_carvana.toml --dry-run",
                "trestle train recipes/resnet18_mnist.toml --schedule 1f1b --balance 4,6",
                "trestle train recipes/unet_quick.toml --ranks 2",
                "trestle train recipes/unet_quick.toml --auto --devices 4",
                "trestle train resnet18_mnist --mesh replicate=4 --ranks 4",
                "trestle train recipes/resnet18_mnist.toml --mesh replicate=2,shard=2",
                "trestle train --resume runs/unet_quick --epochs 12"}) +
      "Ctrl-C, SIGTERM or SIGHUP finishes the batch and saves; a second signal stops at once.\n" +
      exit_codes());
  verb.action([verb, arguments, &options, &words] {
    return perform_train(verb, *arguments, options, words);
  });
}

}  // namespace trestle::cli
