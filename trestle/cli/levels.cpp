#include "trestle/train/levels/levels.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/data_sets/example_sizes.h"
#include "trestle/train/setup.h"

namespace trestle::cli {

namespace {

struct LevelsArguments {
  std::string recipe;
  int layers = 16, width = 512;
  std::int64_t batch = 0;  // 0: the recipe's, or 32
  std::string optimizer;
  std::string bucket;
  std::string svg;
  train::LevelsOptions levels;
  bool dry_run = false;
  bool json = false;
};

// The model that is trained; each level makes a new one.
struct Subject {
  std::string name;
  std::int64_t parameters = 0;
  train::MakeNet make;
  std::vector<std::int64_t> input;  // sizes of an example
};

Subject mlp_subject(LevelsArguments& arguments) {
  const int layers = arguments.layers, width = arguments.width;
  arguments.levels.batch = std::max<std::int64_t>(arguments.levels.batch, arguments.levels.ranks);
  return {.name = text("MLP of ", layers, " layers of ", width),
          // Computed without making the model: for --dry-run it may be larger than this machine.
          .parameters = std::int64_t{layers} * width * (width + std::int64_t{1}),
          .make =
              [layers, width] {
                nn::Layers net(nn::Seed{1});
                for (int i = 0; i < layers; ++i) {
                  net.add(text("linear", i), [width] { return torch::nn::Linear(width, width); });
                  net.add(text("relu", i), torch::nn::ReLU());
                }
                return net;
              },
          .input = {width}};
}

Subject recipe_subject(LevelsArguments& arguments, const RunOptions& options) {
  const recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  train::check_training(recipe, user_parts_of(options));
  if (!recipe.optimizer.frozen.empty())
    throw UsageError(text(arguments.recipe,
                          ": 'frozen' in [optimizer] leaves layers without gradients, but levels "
                          "measures models with all their gradients"),
                     {.hint = "Use a copy of the recipe without 'frozen'."});
  auto& optimizer = arguments.levels.optimizer;
  optimizer = {.name = recipe.optimizer.name};
  optimizer.momentum = recipe.optimizer.momentum;
  optimizer.centered = recipe.optimizer.centered;
  optimizer.amsgrad = recipe.optimizer.amsgrad;
  arguments.levels.batch = recipe.train.batch;
  Subject subject{.name = text(recipe.model.name, " of ", recipe.name),
                  .parameters = train::make_model(recipe, options.models).parameter_count(),
                  .make = [recipe, &options] { return train::make_model(recipe, options.models); },
                  .input = {}};
  if (!arguments.dry_run) subject.input = train::example_sizes(recipe, user_parts_of(options));
  return subject;
}

std::string title(const Subject& subject, std::int64_t parameters,
                  const LevelsArguments& arguments) {
  return text(subject.name, " · ", format_count(parameters), " parameters · ",
              arguments.levels.optimizer.name, " · batch ", arguments.levels.batch, " · ",
              arguments.levels.ranks, " ranks");
}

void column(const std::string& words, int width) {
  std::cout << std::setw(width) << std::right << words;
}

std::string bytes_words(double bytes) { return format_bytes(std::llround(bytes)); }

void print_head(const LevelsArguments& arguments) {
  std::cout << std::setw(14) << std::left << "" << std::setw(12) << std::left << "bytes per";
  column("a device holds", arguments.dry_run ? 14 : 32);
  column("a rank sends", arguments.dry_run ? 14 : 30);
  std::cout << "\n" << std::setw(14) << std::left << "" << std::setw(12) << "parameter";
  if (arguments.dry_run) {
    column("formula", 14), column("formula", 14);
  } else {
    column("at rest", 10), column("formula", 11), column("peak", 11);
    column("per step", 19), column("formula", 11), column("duration", 11);
  }
  std::cout << std::endl;
}

void print_row(const LevelsArguments& arguments, const train::LevelRow& row) {
  std::cout << std::setw(14) << std::left << row.name << std::setw(12) << row.per_parameter;
  if (arguments.dry_run) {
    column(bytes_words(row.formula.rest), 14), column(bytes_words(row.formula.moved), 14);
  } else {
    column(format_bytes(row.measured.rest), 10), column(bytes_words(row.formula.rest), 11);
    column(format_bytes(row.measured.peak), 11);
    column(bytes_words(row.measured.moved), 19), column(bytes_words(row.formula.moved), 11);
    column(format_duration(row.measured.seconds), 11);
  }
  std::cout << std::endl;
}

void check_picture_file(const LevelsArguments& arguments) {
  if (arguments.svg.empty()) return;
  if (std::filesystem::path(arguments.svg).extension() != ".svg")
    throw UsageError(text("--svg ", arguments.svg, ": the file's name must end in .svg"));
  need_folder_for(arguments.svg, "--svg");
}

Bytes bucket_of(const std::string& words) {
  const Bytes bytes = parse_bytes(words);
  if (bytes == 0)
    throw UsageError(text("--bucket ", words, ": a bucket must have at least one byte"),
                     {.hint = "Leave it out for the default."});
  return bytes;
}

int perform_levels(LevelsArguments arguments, const RunOptions& options) {
  check_picture_file(arguments);
  const Subject subject =
      arguments.recipe.empty() ? mlp_subject(arguments) : recipe_subject(arguments, options);
  if (arguments.batch > 0) arguments.levels.batch = arguments.batch;
  // Momentum and other options stay the recipe's, as with trestle train --optimizer.name.
  if (!arguments.optimizer.empty()) arguments.levels.optimizer.name = arguments.optimizer;
  if (!arguments.bucket.empty()) arguments.levels.bucket = bucket_of(arguments.bucket);
  const std::int64_t parameters = subject.parameters;
  auto rows = train::levels_on_paper(parameters, arguments.levels);
  const std::string head = title(subject, parameters, arguments);
  if (!arguments.json) {
    std::cout << head << "\n\n";
    print_head(arguments);
  }
  if (!arguments.dry_run)
    rows = train::measure_levels(subject.make, subject.input, arguments.levels,
                                 [&](const train::LevelRow& row) {
                                   if (!arguments.json) print_row(arguments, row);
                                 });
  if (arguments.json) {
    std::cout << train::levels_json(rows, parameters) << std::endl;
  } else if (arguments.dry_run) {
    for (const auto& row : rows) print_row(arguments, row);
  }
  if (arguments.svg.empty()) return 0;
  write_file(arguments.svg, view::to_svg_bars(train::levels_picture(rows, head)));
  if (!arguments.json) std::cout << "wrote " << arguments.svg << "\n";
  return 0;
}

void add_sizes(Verb verb, const std::shared_ptr<LevelsArguments>& arguments) {
  const auto number = [&](const char* flag, Range range, auto which, const char* help) {
    return verb
        .add_number(
            flag, range,
            [arguments, which](std::int64_t n) {
              auto& field = which(*arguments);
              field = static_cast<std::decay_t<decltype(field)>>(n);
            },
            help)
        .type("N");
  };
  number(
      "--ranks", {2, 64}, [](LevelsArguments& a) -> int& { return a.levels.ranks; },
      "Number of ranks, each with a device and a share of the batch (default 4)");
  number(
      "--replicate", {1, 64}, [](LevelsArguments& a) -> int& { return a.levels.replicate; },
      "Number of rows of HSDP's mesh (default 2)");
  number(
      "--batch", {1, 1'000'000}, [](LevelsArguments& a) -> std::int64_t& { return a.batch; },
      "Samples of all ranks together (default: the recipe's, else 32, or one per rank)");
  number(
      "--steps", {1, 10'000}, [](LevelsArguments& a) -> int& { return a.levels.steps; },
      "Steps to measure at each level, after two warm-up steps (default 3)");
  number(
      "--layers", {1, 10'000}, [](LevelsArguments& a) -> int& { return a.layers; },
      "Layers of the MLP that is used without a recipe (default 16)")
      .excludes("recipe");
  number(
      "--width", {1, 65'536}, [](LevelsArguments& a) -> int& { return a.width; },
      "Width of the MLP's layers (default 512)")
      .excludes("recipe");
}

}  // namespace

void add_levels(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb(
      "levels",
      "Measure memory and traffic of data parallelism, ZeRO-1 to 3, FSDP and HSDP, with their "
      "formulas");
  auto arguments = std::make_shared<LevelsArguments>();
  verb.add("recipe", arguments->recipe,
           "A TOML file, see recipes/: its model, batch and optimizer are used, with random inputs "
           "(default: an MLP, batch 32, adamw)")
      .type("RECIPE");
  add_sizes(verb, arguments);
  verb.add("--optimizer", arguments->optimizer, "sgd, adam, adamw or rmsprop").type("NAME");
  verb.add("--bucket", arguments->bucket,
           "Size of the buckets in which gradients are reduced (default 25MiB, or an eighth of the "
           "weights if that is less)")
      .type("BYTES");
  verb.add("--svg", arguments->svg, "Draw the measurements as bars and the formulas as ticks")
      .type("FILE");
  verb.add_switch("--dry-run", arguments->dry_run, "Print only the formulas; measure nothing")
      .excludes("--svg");
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(
      examples({"trestle levels", "trestle levels --ranks 8 --width 1024 --svg levels.svg",
                "trestle levels recipes/unet_quick.toml --ranks 2",
                "trestle levels --ranks 64 --layers 96 --width 12288 --dry-run"}) +
      "Each level trains a few steps with one thread per rank on virtual devices, which meter "
      "their "
      "memory: at rest\nit is weights, gradients and optimizer state; the peak of a step adds "
      "activations and buffers. Traffic is counted\nin the collectives, as ring algorithms would "
      "send it. All ranks share this machine's cores, so the times of the\nsteps compare levels, "
      "not devices.\n" +
      exit_codes());
  verb.action([arguments, &options] { return perform_levels(*arguments, options); });
}

}  // namespace trestle::cli
