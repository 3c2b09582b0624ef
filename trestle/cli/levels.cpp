#include "trestle/train/levels/levels.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/tensor_level.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/data_sets/example_sizes.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/mesh_options.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/setup.h"
#include "trestle/view/time_axis.h"

namespace trestle::cli {

namespace {

struct LevelsArguments {
  std::string recipe;
  int layers = 16, width = 512;
  std::int64_t batch = 0;  // 0: the recipe's, or 32
  std::string optimizer;
  std::string bucket, units, reshard, checkpoint, link;
  std::int64_t checkpoint_segments = 0;
  bool offload = false;
  std::string svg;
  Overwrite overwrite = Overwrite::Refuse;
  train::LevelsOptions levels;
  recipe::Recipe::Mesh mesh;          // the recipe's
  recipe::Recipe::Pipeline pipeline;  // the recipe's
  bool dry_run = false;
  bool json = false;
};

// The model that is trained; each level makes a new one.
struct Subject {
  std::string name;
  train::LevelsWeights weights;
  train::MakeNet make;
  std::vector<std::int64_t> input;  // sizes of an example
  std::optional<recipe::Recipe> recipe = {};
};

Subject mlp_subject(LevelsArguments& arguments) {
  const int layers = arguments.layers, width = arguments.width;
  arguments.levels.batch = std::max<std::int64_t>(arguments.levels.batch, arguments.levels.ranks);
  return {.name = text("MLP of ", layers, " layers of ", width),
          // Computed without making the model: for --dry-run it may be larger than this machine.
          .weights = {.trained = std::int64_t{layers} * width * (width + std::int64_t{1})},
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

// The flags replace the recipe's recomputation.
void take_checkpoint_flags(const LevelsArguments& arguments, recipe::Recipe& recipe) {
  if (!arguments.checkpoint.empty()) {
    recipe.pipeline.checkpoint_segments = 0;
    recipe::set_field(recipe, "pipeline.checkpoint", arguments.checkpoint);
  }
  if (arguments.checkpoint_segments > 0) {
    recipe.pipeline.checkpoint = {};
    recipe.pipeline.checkpoint_segments = arguments.checkpoint_segments;
  }
}

Subject recipe_subject(LevelsArguments& arguments, const RunOptions& options) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  take_checkpoint_flags(arguments, recipe);
  train::check_training(recipe, user_parts_of(options));
  recipe.mesh.tensor = 1;  // the levels are those of the whole model, and a row has tensor ranks
  auto& optimizer = arguments.levels.optimizer;
  optimizer = {.name = recipe.optimizer.name};
  optimizer.momentum = recipe.optimizer.momentum;
  optimizer.centered = recipe.optimizer.centered;
  optimizer.amsgrad = recipe.optimizer.amsgrad;
  arguments.levels.batch = recipe.train.batch;
  arguments.mesh = recipe.mesh;
  arguments.pipeline = recipe.pipeline;
  Subject subject{
      .name = text(recipe.model.name, " of ", recipe.name),
      .weights = {},
      .make = [recipe, &options] { return train::make_frozen_model(recipe, options.models); },
      .input = {},
      .recipe = recipe};
  subject.weights = train::weights_of(subject.make());
  if (train::is_transformer(recipe)) {  // its data may be missing
    const auto config = train::transformer_config(recipe);
    arguments.levels.ids = config.vocabulary;
    subject.input = {config.context};
  } else if (!arguments.dry_run) {
    subject.input = train::example_sizes(recipe, user_parts_of(options));
  }
  return subject;
}

std::string title(const Subject& subject, const LevelsArguments& arguments) {
  const train::LevelsWeights& weights = subject.weights;
  return text(subject.name, " · ", format_count(weights.trained),
              weights.frozen > 0 ? " trained" : "", " parameters",
              weights.frozen > 0 ? text(" and ", format_count(weights.frozen), " frozen ones of ",
                                        format_bytes(weights.frozen_bytes))
                                 : "",
              " · ", arguments.levels.optimizer.name, " · batch ", arguments.levels.batch, " · ",
              arguments.levels.ranks, " ranks");
}

// The unit of all bytes in the table, so that its columns are narrow.
struct ByteUnit {
  double bytes;
  const char* name;
};

ByteUnit unit_of(const std::vector<train::LevelRow>& rows) {
  constexpr ByteUnit kib{1024.0, "KiB"}, mib{1048576.0, "MiB"}, gib{1073741824.0, "GiB"};
  double most = 0;
  for (const auto& row : rows) most = std::max({most, row.formula.rest, row.formula.moved});
  return most < mib.bytes ? kib : most < 100'000 * mib.bytes ? mib : gib;
}

// The table, 80 columns wide, or 72 without formulas in a narrower terminal. Its rows are printed
// one by one.
class LevelsTable {
 public:
  LevelsTable(ByteUnit unit, bool dry_run, int columns)
      : unit_(unit), dry_run_(dry_run), formulas_(dry_run || columns >= 80) {}

  void print_head() const {
    const std::string held = text("a device holds, ", unit_.name);
    const std::string sent = text("a rank sends, ", unit_.name);
    left(14, ""), left(9, "bytes per");
    if (dry_run_) {
      right(22, held), right(20, sent), end();
      left(14, ""), left(9, "parameter"), right(22, "formula"), right(20, "formula");
    } else {
      right(formulas_ ? 27 : 21, held), right(formulas_ ? 20 : 18, sent), end();
      left(14, ""), left(9, "parameter"), right(9, "at rest"), formula("formula");
      right(formulas_ ? 9 : 12, "peak"), right(formulas_ ? 11 : 18, "per step");
      formula("formula"), right(10, "duration");
    }
    end();
  }

  void print(const train::LevelRow& row) const {
    left(14, row.name), left(9, row.per_parameter);
    if (dry_run_) {
      right(22, number(row.formula.rest)), right(20, number(row.formula.moved));
    } else {
      right(9, number(static_cast<double>(row.measured.rest)));
      formula(number(row.formula.rest));
      right(formulas_ ? 9 : 12, number(static_cast<double>(row.measured.peak)));
      right(formulas_ ? 11 : 18, number(row.measured.moved));
      formula(number(row.formula.moved));
      right(10, format_duration(row.measured.seconds));
    }
    end();
  }

 private:
  static void left(int width, const std::string& words) {
    std::cout << std::setw(width) << std::left << words;
  }
  static void right(int width, const std::string& words) {
    std::cout << std::setw(width) << std::right << words;
  }
  static void end() { std::cout << std::endl; }
  void formula(const std::string& words) const {
    if (formulas_) right(9, words);
  }
  std::string number(double bytes) const { return view::decimal(bytes / unit_.bytes, 1); }

  ByteUnit unit_;
  bool dry_run_, formulas_;
};

// "link      100 Mbit/s and 5 ms each way · ...: DDP 1.2 s, ZeRO-1 ..."
std::string link_words(const std::vector<train::LevelRow>& rows, const simulate::Link& link) {
  std::vector<std::string> times;
  bool shares = false;
  for (const auto& row : rows) {
    if (row.formula.link_seconds > 0)
      times.push_back(row.name + " " + format_duration(row.formula.link_seconds));
    shares = shares || (row.replicate > 1 && row.shard > 1);
  }
  return text("link      ", to_string(link), ", each rank on a host of its own",
              shares ? ", each row of HSDP on one" : "", ": messages take at least ",
              join(times, ", "), " per step");
}

std::string frozen_words(const std::vector<train::LevelRow>& rows,
                         const train::LevelsWeights& weights) {
  std::vector<std::string> shares;
  for (const auto& row : rows)
    if (row.level == ShardLevel::Parameters)
      shares.push_back(text(format_bytes(weights.frozen_bytes / row.shard), " with ", row.name));
  return text("frozen    weights have no gradients and no optimizer state; a device holds ",
              format_bytes(weights.frozen_bytes), " of them, ", join(shares, ", "));
}

void check_picture_file(const LevelsArguments& arguments) {
  if (arguments.svg.empty()) return;
  if (std::filesystem::path(arguments.svg).extension() != ".svg")
    throw UsageError(text("--svg ", arguments.svg, ": the file's name must end in .svg"));
  need_folder_for(arguments.svg, "--svg");
  train::refuse_replacing({arguments.svg}, arguments.overwrite, "--svg");
}

Bytes bucket_of(const std::string& words) {
  const Bytes bytes = parse_bytes(words);
  if (bytes == 0)
    throw UsageError(text("--bucket ", words, ": a bucket must have at least one byte"),
                     {.hint = "Leave it out for the default."});
  return bytes;
}

// The keys of [mesh] and [pipeline] that change a level, from the flags or the recipe.
void set_sharding(const LevelsArguments& arguments, const Subject& subject,
                  train::LevelsOptions* levels) {
  recipe::Recipe changed;
  changed.mesh = arguments.mesh;
  changed.mesh.shard = arguments.levels.ranks;
  changed.pipeline.checkpoint = arguments.pipeline.checkpoint;
  changed.pipeline.checkpoint_segments = arguments.pipeline.checkpoint_segments;
  take_checkpoint_flags(arguments, changed);
  // It is no layer: the model is made with it.
  if (subject.recipe && train::is_transformer(*subject.recipe))
    std::erase(changed.pipeline.checkpoint, "attention");
  if (!arguments.units.empty()) recipe::set_field(changed, "mesh.units", arguments.units);
  if (!arguments.reshard.empty()) changed.mesh.reshard = arguments.reshard;
  changed.mesh.offload |= arguments.offload;
  if (!arguments.link.empty()) changed.mesh.link = arguments.link;
  levels->link = train::link_of(changed.mesh);
  if (levels->link && changed.mesh.ranks_per_host > 0)
    throw UsageError(
        "'ranks_per_host' in [mesh] has no effect in levels, which puts each rank or "
        "each row of HSDP on a host of its own",
        {.hint = "Leave it out (--ranks-per-host 0)."});
  if (arguments.bucket.empty() && !changed.mesh.bucket.empty())
    levels->bucket = bucket_of(changed.mesh.bucket);
  if (train::stage_units_of(changed.mesh) == StageUnits::Stage)
    throw UsageError("units = \"stage\": levels measures a model without stages",
                     {.hint = "Give a size above the model's, for example --units 1TiB."});
  train::check_names_of_layers(changed, subject.make());
  ShardOptions options{.level = ShardLevel::Parameters};
  train::set_sharding(changed.mesh, &options);
  levels->units = options.units;
  levels->reshard_after_forward = options.reshard_after_forward;
  levels->shards_on_cpu = options.shards_on_cpu;
  levels->checkpoint = changed.pipeline.checkpoint;
  levels->checkpoint_segments = static_cast<int>(changed.pipeline.checkpoint_segments);
}

int perform_levels(LevelsArguments arguments, const RunOptions& options) {
  check_picture_file(arguments);
  const Subject subject =
      arguments.recipe.empty() ? mlp_subject(arguments) : recipe_subject(arguments, options);
  if (arguments.batch > 0) arguments.levels.batch = arguments.batch;
  // Momentum and other options stay the recipe's, as with trestle train --optimizer.name.
  if (!arguments.optimizer.empty()) arguments.levels.optimizer.name = arguments.optimizer;
  if (!arguments.bucket.empty()) arguments.levels.bucket = bucket_of(arguments.bucket);
  set_sharding(arguments, subject, &arguments.levels);
  std::string why_no_tensor;
  if (subject.recipe)
    arguments.levels.tensor =
        tensor_level(*subject.recipe, arguments.levels, options.models, &why_no_tensor);
  auto rows = train::levels_on_paper(subject.weights, arguments.levels);
  const std::string head = title(subject, arguments);
  const int columns = columns_for_text(STDOUT_FILENO);
  const LevelsTable table(unit_of(rows), arguments.dry_run, columns);
  if (!arguments.json) {
    std::cout << folded(head, columns, 2) << "\n\n";
    table.print_head();
  }
  if (!arguments.dry_run)
    rows = train::measure_levels(subject.make, subject.input, arguments.levels,
                                 [&](const train::LevelRow& row) {
                                   if (!arguments.json) table.print(row);
                                 });
  if (arguments.json) {
    std::cout << train::levels_json(rows, subject.weights) << std::endl;
  } else if (arguments.dry_run) {
    for (const auto& row : rows) table.print(row);
  }
  if (!arguments.json && subject.weights.frozen > 0)
    std::cout << "\n" << folded(frozen_words(rows, subject.weights), columns, 10) << "\n";
  if (!arguments.json && !why_no_tensor.empty())
    std::cout << "\n" << folded("tensor    left out: " + why_no_tensor, columns, 10) << "\n";
  if (!arguments.json && arguments.levels.link)
    std::cout << "\n" << folded(link_words(rows, *arguments.levels.link), columns, 10) << "\n";
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
      "Measure memory and traffic of data parallelism, ZeRO-1 to 3, FSDP, HSDP and, for a "
      "transformer, tensor parallelism, with their formulas");
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
  verb.add("--units", arguments->units,
           "Level parameters: layers, a size that joins layers, or names of layers (default: the "
           "recipe's)")
      .type("UNITS");
  verb.add("--reshard", arguments->reshard,
           "Level parameters: yes, no, or the number of neighbours that keep parameters together")
      .type("WHEN");
  verb.add(
          "--link", arguments->link,
          "The bandwidth of each host and the time of a message from one host to another, such as "
          "100Mbit,5ms: also print the least time of each level's messages (default: the recipe's)")
      .type("LINK");
  verb.add_switch("--offload", arguments->offload,
                  "Keep the shards of the levels above none in CPU memory");
  verb.add("--checkpoint", arguments->checkpoint,
           "Recompute these layers in the backward: names, or layers for all with parameters; of a "
           "transformer also attention (default: the recipe's)")
      .type("NAMES");
  verb.add_number(
          "--checkpoint-segments", {1, 10'000},
          [arguments](std::int64_t n) { arguments->checkpoint_segments = n; },
          "Recompute the model in this many segments (default: the recipe's)")
      .type("N")
      .excludes("--checkpoint");
  verb.add("--svg", arguments->svg, "Draw the measurements as bars and the formulas as ticks")
      .type("FILE");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.add_switch("--dry-run", arguments->dry_run, "Print only the formulas; measure nothing")
      .excludes("--svg");
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(
      examples({"trestle levels", "trestle levels --ranks 8 --width 1024 --svg levels.svg",
                "trestle levels recipes/unet_quick.toml --ranks 2",
                "trestle levels --ranks 64 --layers 96 --width 12288 --dry-run"}) +
      "Each level trains a few steps with one thread per rank on virtual devices, which meter "
      "their memory: at rest it is weights, gradients and optimizer state; the peak of a step adds "
      "activations and buffers. Traffic is counted in the collectives, as ring algorithms would "
      "send it. Tensor ranks split the layers and "
      "have the whole batch. All ranks share this machine's cores, so the times of the steps "
      "compare levels, "
      "not devices.\n" +
      exit_codes());
  verb.action([arguments, &options] { return perform_levels(*arguments, options); });
}

}  // namespace trestle::cli
