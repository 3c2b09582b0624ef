#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/optim/options/optimizer_options.h"

// A run as data: the content of a recipe file, with all defaults filled in. Needs no torch.
//
//   Recipe recipe = read_recipe("recipes/unet_quick.toml");
//   recipe.train.epochs = 3;
//   std::string file = to_toml(recipe);
//
// recipe_fields.h describes the meaning and the allowed values of each field.
namespace trestle::recipe {

struct Recipe {
  std::string name;  // the run's name: the file name without folder and extension

  struct Model {
    std::string name;
    std::int64_t classes = 0;
    std::int64_t channels = 0;
    std::int64_t width = 0;
    bool bilinear = false;
    std::int64_t depth = 0;
    std::vector<std::string> pooling;
    std::string memory_format = "contiguous";
    std::string weights;
    bool weights_strict = true;
  } model;

  // The sizes of the models "gpt2" and "llama". 0: the config's value, or the model's default.
  struct Transformer {
    std::string config;
    std::int64_t vocabulary = 0;
    std::int64_t vocabulary_multiple = 1;
    std::int64_t context = 0;
    std::int64_t layers = 0;
    std::int64_t heads = 0, kv_heads = 0, head_size = 0;
    std::int64_t mlp = 0;
    std::string activation = "auto";
    double norm_epsilon = 0, rope_theta = 0, initial_deviation = 0;
    std::string tied = "auto";
    double dropout = 0, attention_dropout = 0;
    std::string attention = "fused";
  } transformer;

  // Low-rank adapters of "gpt2" and "llama"; without a rank there are none.
  struct Adapters {
    std::int64_t rank = 0;
    double alpha = 16, dropout = 0;
    std::vector<std::string> targets;
    std::string frozen_type = "fp32";
    std::string weights;
  } adapters;

  struct Data {
    std::string name;
    std::string images, masks, folder;
    std::string input_array, target_array;
    std::string mask_suffix;
    std::vector<std::string> mask_values, mask_ignore;
    std::vector<std::string> class_names;
    double scale = 1;
    std::int64_t image_width = 0, image_height = 0;
    double validation = 0.2;
    std::int64_t split_seed = 42;
    std::int64_t workers = 2;
    std::string flip = "none";
    double crop = 0, colour = 0;
    std::int64_t synthesize = 0;
    std::vector<std::int64_t> shape;
    std::int64_t count = 0;
    std::string targets = "one_hot";
    std::int64_t synthesize_width = 96, synthesize_height = 64;
    std::int64_t synthesize_depth = 32;
    std::vector<std::int64_t> patch;
    std::int64_t patches_per_volume = 8;
    double foreground = 0.5;
    std::string normalize = "volume";
    std::string spacing;
    std::vector<std::string> flip_axes;
    double intensity = 0;
    double overlap = 0.5;
    std::string blend = "gaussian";
    std::string tokens;
    std::string order = "windows";
    std::int64_t row_tokens = 0;
    std::int64_t validation_windows = 0;

    bool operator==(const Data&) const = default;
  } data;

  struct Devices {
    std::string use = "cpu";
    std::int64_t threads = 0;
  } devices;

  struct Mesh {
    std::int64_t pipeline = 0;
    std::int64_t replicate = 1;
    std::int64_t shard = 1;
    std::int64_t tensor = 1;
    bool sequence_parallel = false;
    std::vector<std::string> split_layers = {};
    std::string shard_level = "parameters";
    std::vector<std::string> units = {"layers"};
    std::string reshard = "yes";
    std::string bucket = {};
    bool offload = false;
    std::string link = {};
    std::int64_t ranks_per_host = 0;

    std::int64_t parts() const { return replicate * shard; }  // data-parallel shares of a batch
    std::int64_t ranks_of_stage() const { return parts() * tensor; }
  } mesh;

  // The planner that chooses [mesh], [pipeline] and the number of devices before a run.
  struct Plan {
    bool automatic = false;
    std::string goal = "time";
    std::string memory;
    std::vector<std::string> keep;
    std::int64_t device_count = 0;

    bool operator==(const Plan&) const = default;
  } plan;

  struct Pipeline {
    std::vector<std::int64_t> balance;
    std::int64_t micro_batches = 1;
    std::int64_t split_size = 0;
    std::string schedule = "gpipe";
    std::vector<std::string> table = {};
    std::int64_t stages_per_rank = 0;
    std::string backward_order = "reverse";
    std::vector<std::string> recompute = {"never"};
    std::vector<std::string> checkpoint = {};
    std::int64_t checkpoint_segments = 0;
    bool split_recomputed = false;
    std::string batch_norm = "each_micro_batch";
    bool lend_cores = false;
    double deadline = 600;
  } pipeline;

  // The options of optim::OptimizerOptions by their names, and how the run uses the optimizer.
  struct Optimizer : optim::OptimizerOptions {
    Optimizer() : OptimizerOptions{.name = "adam"} {}

    double clip_grad_norm = 0;
    std::vector<std::string> frozen, no_weight_decay, rate_factors;
    std::string learning_rate_schedule = "constant";
    std::string schedule_by = "step";
    std::int64_t schedule_length = 0;
    double decay_factor = 0.1;
    std::int64_t decay_every = 1;
    std::vector<std::int64_t> milestones;
    double one_cycle_rise = 0.3, one_cycle_first_divisor = 25, one_cycle_last_divisor = 1e4;
    bool one_cycle_momentum = true;
    double one_cycle_lowest_momentum = 0.85, one_cycle_highest_momentum = 0.95;
    std::int64_t warm_up = 0;
    double warm_up_from = 0.01;
    double min_learning_rate = 0;
    bool plateau = false;
    std::int64_t plateau_patience = 2;
    double plateau_factor = 0.1;
    double plateau_threshold = 1e-4;
    std::string plateau_threshold_mode = "relative";
    std::int64_t plateau_cooldown = 0;
  } optimizer;

  struct Train {
    std::int64_t epochs = 1;
    std::int64_t max_steps = 0;
    std::int64_t batch = 16;
    std::int64_t accumulate = 1;
    std::string precision = "fp32";
    std::int64_t seed = 42;
    std::string loss;
    std::string metric;
    bool drop_last = true;
    bool deterministic = false;
    bool pictures = true;
    std::int64_t sample_tokens = 200;
    bool tensorboard = true;
    bool predict = true;
    double peak_tflops = 0;
    std::int64_t log_every = 10;
    std::int64_t save_every = 0;
    std::int64_t keep_best = 1;
    std::int64_t patience = 0;
    double min_delta = 0;
    std::string runs = "runs";
    bool deepspeed_checkpoints = false;
    std::string deepspeed_config;
  } train;
};

// The folders in which a recipe's name is looked up: the current one, recipes/ in it, and the one
// that `cmake --install` filled, found from the place of the running program:
// <prefix>/share/trestle/recipes for <prefix>/bin/trestle.
std::vector<std::filesystem::path> recipe_folders();

// Reads a TOML file. A name without a folder and extension, such as "unet_quick", stands for
// unet_quick.toml in one of recipe_folders(), the first that has it. Throws UsageError with file
// and line for a missing file, invalid TOML, unknown sections and keys (with the nearest known
// one), wrong types, and values out of range.
Recipe read_recipe(const std::filesystem::path& path);
// The file of a path, or of the name of a recipe in the folders of recipes. It need not exist.
std::filesystem::path recipe_file(const std::filesystem::path& path);

// The same for text; `file` is its name in messages.
Recipe parse_recipe(std::string_view toml, const std::string& file);

// Sets a field as a flag does: set_field(recipe, "train.epochs", "3"). Throws UsageError.
void set_field(Recipe& recipe, std::string_view name, std::string_view value);

// Checks rules that involve several fields: a model is named, lists have matching sizes. Throws one
// UsageError with all problems, including `problems`, which the caller found.
void check_recipe(const Recipe& recipe, std::vector<std::string> problems = {});

// The recipe as TOML with every field. parse_recipe() reads back an equal recipe.
std::string to_toml(const Recipe& recipe);

// Identifies a run: a hash of every field except those that a resumed run may change.
std::string recipe_hash(const Recipe& recipe);

}  // namespace trestle::recipe
