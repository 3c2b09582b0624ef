#include "trestle/train/setup.h"

#include <algorithm>
#include <string_view>

#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/to_recipe.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/device/determinism.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/optim/factory.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/deepspeed_checkpoint.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/network_on_paper.h"
#include "trestle/train/optimizers/parameter_groups.h"
#include "trestle/train/optimizers/recipe_optimizers.h"
#include "trestle/train/optimizers/run_rate.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/sharding_plan.h"
#include "trestle/train/split_layers.h"

namespace trestle::train {

namespace {

// The pipeline refuses it too, but only at the first batch.
void check_loss(const recipe::Recipe& recipe, const UserParts& own) {
  const bool whole_batch = all_forwards_first(recipe);
  const nn::Loss loss = loss_of(recipe, own);
  const bool own_loss = own.losses.contains(recipe.train.loss);
  if (recipe.data.name == "tokens" && !own_loss && loss.name != "token_cross_entropy")
    throw UsageError(text("the loss '", loss.name, "' does not take the scores of tokens"),
                     {.hint = "Leave 'loss' in [train] out: it is token_cross_entropy then."});
  if (loss.kind == nn::Loss::Kind::WholeBatch && !whole_batch)
    nn::refuse_whole_batch(loss, recipe.pipeline.schedule);
}

// A run of 'count' windows would otherwise read all of them.
void check_row_count(const recipe::Recipe::Data& data) {
  if (data.name == "tokens" && data.count > 0 && data.order != "random")
    throw UsageError(
        text("'count' = ", data.count, " in [data] has no effect with order = \"", data.order,
             "\": an epoch is the whole text"),
        {.hint = "Leave it out (--count 0), or set order = \"random\"; 'max_steps' in [train] ends "
                 "a run early."});
}

}  // namespace

void check_training(const recipe::Recipe& recipe, const UserParts& own) {
  if (recipe.plan.automatic)
    throw UsageError("'auto' in [plan] needs a planner: only trestle train and plan have one",
                     {.hint = "Plan it first: trestle plan RECIPE --out planned.toml."});
  recipe::check_recipe(recipe, problems_of_data(recipe, own));
  check_loss(recipe, own);
  check_row_count(recipe.data);
  optim::check_options(optimizer_options(recipe));
  check_rate(recipe.optimizer);
  deepspeed::deepspeed_config_of(recipe);
  check_deepspeed_checkpoints(recipe);
  schedule::parse_backward_order(recipe.pipeline.backward_order);
  nn::parse_batch_norm_statistics(recipe.pipeline.batch_norm);
  for (const std::string& word : recipe.pipeline.recompute) schedule::parse_recompute(word);
  link_of(recipe.mesh);
  check_hosts(recipe.mesh);
  check_split_of_layers(recipe);
}

std::optional<simulate::Link> link_of(const recipe::Recipe::Mesh& mesh) {
  if (mesh.link.empty()) return std::nullopt;
  try {
    return simulate::parse_link(mesh.link);
  } catch (UsageError& error) {
    error.add_context("in 'link' of [mesh] (--link)");
    throw;
  }
}

void check_channels(const recipe::Recipe& recipe, const at::Tensor& inputs) {
  const std::string problem = problem_of_channels(recipe, inputs);
  if (!problem.empty()) throw UsageError(problem);
}

namespace {

std::vector<Device> devices_of(const recipe::Recipe& recipe) {
  try {
    return parse_devices(recipe.devices.use);
  } catch (UsageError& error) {
    error.add_context(text("in 'use' of [devices] (--devices): ", recipe.devices.use));
    throw;
  }
}

// The pipeline refuses it too; this message names the recipe field.
void check_recompute(const recipe::Recipe& recipe, std::size_t stages) {
  const std::size_t modes = recipe.pipeline.recompute.size();
  if (modes <= 1 || modes == stages) return;
  throw UsageError(text("'recompute' in [pipeline] has ", modes, " entries, and the pipeline ",
                        counted(static_cast<std::int64_t>(stages), "stage")),
                   {.hint = "Give one entry for all stages, or one for each."});
}

}  // namespace

std::vector<Device> open_devices(const recipe::Recipe& recipe) {
  if (recipe.train.deterministic) use_deterministic_algorithms();
  const int threads = static_cast<int>(recipe.devices.threads);
  // A device's backward thread takes its number of threads when it is installed.
  if (threads > 0 && recipe.devices.use.find("virtual") != std::string::npos) {
    install_virtual_devices({.count = 1, .threads_per_device = threads});
  }
  std::vector<Device> devices = devices_of(recipe);
  if (devices[0].torch.is_cpu()) cache_cpu_memory();
  if (threads > 0) set_worker_threads(threads);
  return devices;
}

at::MemoryFormat memory_format_of(const recipe::Recipe& recipe) {
  return recipe.model.memory_format == "channels_last" ? at::MemoryFormat::ChannelsLast
                                                       : at::MemoryFormat::Preserve;
}

namespace {

constexpr const char* attention_word = "attention";  // in 'checkpoint' of [pipeline]

bool recomputes_attention(const recipe::Recipe& recipe) {
  const auto& words = recipe.pipeline.checkpoint;
  return is_transformer(recipe) &&
         std::find(words.begin(), words.end(), attention_word) != words.end();
}

// The layers that are recomputed as a whole.
std::vector<std::string> recomputed_layers(const recipe::Recipe& recipe) {
  std::vector<std::string> names = recipe.pipeline.checkpoint;
  if (is_transformer(recipe)) std::erase(names, attention_word);
  return names;
}

CheckpointLayersOptions recomputation_of(const recipe::Recipe& recipe,
                                         tensor_parallel::TensorRanks ranks) {
  if (!recipe.pipeline.split_recomputed) return {};
  return {.split_arguments = std::move(ranks)};
}

}  // namespace

nn::Graph graph_of_training(const recipe::Recipe& recipe, const nn::Layers& model) {
  nn::Graph graph = model.graph();
  const std::vector<std::string> names = recomputed_layers(recipe);
  if (!names.empty())
    checkpoint_layers(names, recomputation_of(recipe, split_on_paper(recipe.mesh).ranks))(graph);
  return graph;
}

void check_names_of_layers(const recipe::Recipe& recipe, const nn::Layers& model) {
  if (units_of(recipe.mesh).names.empty() && recipe.pipeline.checkpoint.empty()) return;
  std::vector<std::string> names;
  for (const nn::Layer& layer : graph_of_training(recipe, model).layers)
    names.push_back(layer.name);
  check_unit_names(recipe.mesh, names);
}

models::TensorSplit split_on_paper(const recipe::Recipe::Mesh& mesh) {
  return {.ranks = tensor_parallel::TensorRanks::on_paper(0, static_cast<int>(mesh.tensor)),
          .sequence = mesh.sequence_parallel};
}

nn::Layers make_model(const recipe::Recipe& recipe, const models::OwnModels& own,
                      const models::TensorSplit& tensor, tensor_parallel::SplitPlan* plan,
                      models::InitialWeights weights) {
  models::ModelOptions options;
  options.name = recipe.model.name;
  options.in_channels = recipe.model.channels;
  options.classes = recipe.model.classes;
  options.width = recipe.model.width;
  options.bilinear = recipe.model.bilinear;
  options.depth = recipe.model.depth;
  options.pooling = recipe.model.pooling;
  options.seed = static_cast<std::uint64_t>(recipe.train.seed);
  const bool is_own = own.contains(recipe.model.name);
  if (is_own) options.tensor = tensor;
  if (is_transformer(recipe) && !is_own) {
    options.transformer = transformer_config(recipe);
    options.attention = models::parse_attention_core(recipe.transformer.attention);
    options.adapters = adapter_options(recipe);
    options.frozen_type = frozen_type(recipe);
    options.tensor = tensor;
    if (splits_scores(recipe)) options.scores = models::SplitScores::Own;
    options.recompute_attention = recomputes_attention(recipe);
  }
  const auto checked = [&](nn::Layers model) {
    auto split = split_layers(recipe, model, options, own, tensor.ranks);
    if (plan != nullptr) *plan = std::move(split);
    check_names_of_layers(recipe, model);
    return model;
  };
  if (const auto found = own.find(recipe.model.name); found != own.end())
    return checked(found->second(options));
  std::vector<std::string> known = models::model_names();
  for (const auto& [name, make] : own) known.push_back(name);
  if (std::find(known.begin(), known.end(), options.name) == known.end())
    throw_unknown("model", options.name, known);
  if (weights == models::InitialWeights::Unset && options.transformer)
    return checked(models::transformer(*options.transformer,
                                       {.seed = options.seed,
                                        .weights = weights,
                                        .attention = options.attention,
                                        .adapters = options.adapters,
                                        .frozen_type = options.frozen_type,
                                        .tensor = options.tensor,
                                        .scores = options.scores,
                                        .recompute_attention = options.recompute_attention}));
  return checked(models::make_model(options));
}

nn::Layers make_frozen_model(const recipe::Recipe& recipe, const models::OwnModels& own,
                             const std::optional<models::TensorSplit>& tensor) {
  nn::Layers model = make_model(recipe, own, tensor ? *tensor : split_on_paper(recipe.mesh));
  const NamedTensors parameters = model.named_parameters();
  check_parameter_names(recipe, parameters);
  freeze_named(recipe, parameters);
  return model;
}

// The pipeline refuses it too; this message names the recipe field and the flag.
void check_balance(const recipe::Recipe& recipe, std::size_t devices, const char* what) {
  const std::size_t stages = recipe.pipeline.balance.size();
  const auto table = table_of(recipe);
  if (table && devices > 1 && devices != static_cast<std::size_t>(table->rank_count()))
    throw UsageError(
        text(recipe.pipeline.schedule, " is a table of ", counted(table->rank_count(), "rank"),
             ", and ", counted(static_cast<std::int64_t>(devices), what),
             plural(static_cast<std::int64_t>(devices), " is", " are"), " given"),
        {.hint = "Give one device or rank for each rank of the table, or name another "
                 "schedule: --schedule auto searches one. A run keeps its table."});
  if (stages == 0 || searches_schedule(recipe)) return;
  if (devices == 1 || table) return (void)ranks_of_stages(recipe, stages);
  const int each = stages_per_rank(recipe);
  const std::size_t needed = devices * static_cast<std::size_t>(each);
  if (needed == stages) return;
  const auto given = static_cast<std::int64_t>(stages), wanted = static_cast<std::int64_t>(devices);
  throw UsageError(
      text("'balance' in [pipeline] has ", counted(given, "stage"), ", and ", counted(wanted, what),
           each > 1 ? text(" of ", each, " stages") : std::string(), plural(wanted, " is", " are"),
           " given"),
      {.hint = text("Leave 'balance' out (--balance \"[]\") to have the model cut for ",
                    counted(wanted, what), " by measured times, or give one of ",
                    counted(static_cast<std::int64_t>(needed), "entry", "entries"), ".")});
}

// A pipeline would run GPipe where the schedule does not take the batch's micro-batches.
void check_schedule_sizes(const recipe::Recipe& recipe, std::size_t places) {
  (void)compute_actions(recipe, static_cast<int>(stage_count(recipe, places)),
                        micro_batches_of(recipe));
  const auto table = table_of(recipe);
  if (!table || table->micro_batches == micro_batches_of(recipe)) return;
  throw UsageError(text(recipe.pipeline.schedule, " is a table of ",
                        counted(table->micro_batches, "micro-batch", "micro-batches"),
                        ", and a batch has ", micro_batches_of(recipe)),
                   {.hint = text("Set micro_batches = ", table->micro_batches,
                                 " in [pipeline], or make another table.")});
}

std::unique_ptr<Pipeline> make_pipeline(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const std::vector<Device>& devices, PipelineParts parts) {
  if (parts.group.valid()) {
    check_balance(recipe, static_cast<std::size_t>(parts.group.size()), "rank");
  } else {
    check_balance(recipe, devices.size(), "device");
  }
  const std::size_t places =
      parts.group.valid() ? static_cast<std::size_t>(parts.group.size()) : devices.size();
  check_recompute(recipe, stage_count(recipe, places));
  if (parts.optimizer) check_schedule_sizes(recipe, places);
  PipelineOptions options;
  options.group = parts.group;
  options.replicas = std::move(parts.replicas);
  options.tensor = std::move(parts.tensor);
  options.optimizer.make = std::move(parts.optimizer);
  if (options.optimizer.make) options.optimizer.clip_grad_norm = recipe.optimizer.clip_grad_norm;
  options.devices = devices;
  options.balance = std::move(parts.balance);
  if (!recipe.pipeline.balance.empty())
    options.balance.assign(recipe.pipeline.balance.begin(), recipe.pipeline.balance.end());
  options.micro_batches = static_cast<int>(recipe.pipeline.micro_batches);
  options.plan.split_size = static_cast<int>(recipe.pipeline.split_size);
  options.plan.table = table_of(recipe);
  if (!options.plan.table) options.schedule = recipe.pipeline.schedule;
  options.stages_per_rank = static_cast<int>(recipe.pipeline.stages_per_rank);
  options.plan.backward_order = schedule::parse_backward_order(recipe.pipeline.backward_order);
  options.numerics.batch_norm = nn::parse_batch_norm_statistics(recipe.pipeline.batch_norm);
  options.recompute = schedule::parse_recompute(recipe.pipeline.recompute.at(0));
  if (recipe.pipeline.recompute.size() > 1)
    for (const std::string& word : recipe.pipeline.recompute)
      options.plan.recompute_per_stage.push_back(schedule::parse_recompute(word));
  options.checkpoint_segments = static_cast<int>(recipe.pipeline.checkpoint_segments);
  const std::vector<std::string> recomputed = recomputed_layers(recipe);
  if (!recomputed.empty())
    options.wrap_layers =
        checkpoint_layers(recomputed, recomputation_of(recipe, std::move(parts.tensor_ranks)));
  options.numerics.memory_format = memory_format_of(recipe);
  options.numerics.precision = precision::parse_precision(recipe.train.precision);
  options.numerics.seed = static_cast<std::uint64_t>(recipe.train.seed);
  options.cores.threads = static_cast<int>(recipe.devices.threads);
  if (recipe.pipeline.lend_cores) options.cores.lending = CoreLending::On;
  options.deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(recipe.pipeline.deadline * 1000));
  if (options.balance.empty()) options.plan.sample = std::move(parts.sample);
  return std::make_unique<Pipeline>(model, std::move(options));
}

bool is_misfit(const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  const auto says = [&](std::string_view part) {
    return words.find(part) != std::string_view::npos;
  };
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr &&
         dynamic_cast<const c10::AcceleratorError*>(&error) == nullptr && !is_too_large(error) &&
         !says("in loss '");
}

bool is_too_large(const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr &&
         (words.find("can't allocate memory") != std::string_view::npos ||
          words.find("overflow") != std::string_view::npos);
}

std::string sizes_of(const recipe::Recipe& recipe) {
  const recipe::Recipe standard;
  std::vector<std::string> words;
  for (const char* name : {"model.width", "model.channels", "model.classes", "data.image_width",
                           "data.image_height", "data.shape", "data.patch", "train.batch",
                           "pipeline.micro_batches", "pipeline.split_size"}) {
    const recipe::Field& field = *recipe::find_field(name);
    if (field.get(recipe) != field.get(standard) || field.key == "batch")
      words.push_back(
          text(field.key, " = ", recipe::to_toml(field.get(recipe)), " in [", field.section, "]"));
  }
  return "with " + join(words, ", ");
}

void refuse_missing_class(const recipe::Recipe& recipe, const c10::Error& error) {
  const std::string words = error.what_without_backtrace();
  const auto at = words.find("Target ");
  if (at == std::string::npos || words.find("is out of bounds", at) == std::string::npos) return;
  if (words.compare(at + 7, 1, "-") == 0)
    throw UsageError(
        text("the data have a negative class, and classes count from 0:\n  ", words.substr(at)),
        {.hint =
             "Renumber the targets. 'mask_ignore' in [data] lists the values of masks that have "
             "no class."});
  throw UsageError(text("the data have more classes than the model '", recipe.model.name,
                        "' tells apart:\n  ", words.substr(at)),
                   {.hint = "Set 'classes' in [model] to their number."});
}

namespace {

// Whether libtorch's message is about the number of channels of images, or of numbers of a sample:
// "to have 3 channels, but got 5 channels instead", "cannot be multiplied (4x20 and 32x64)".
bool is_about_channels(const std::string& words, const at::IntArrayRef& sizes) {
  if (sizes.size() == 3)
    return words.find(text("channels, but got ", sizes[0], " channels")) != std::string::npos;
  return sizes.size() == 1 && words.find("cannot be multiplied") != std::string::npos &&
         words.find(text("x", sizes[0], " and ")) != std::string::npos;
}

}  // namespace

namespace {

// Whether the recipe's data set reads this key of [data]; no for a program's own data set.
bool reads_key(const recipe::Recipe& recipe, const char* key) {
  return std::ranges::any_of(data_sets(), [&](const DataSet& set) {
    return set.name == recipe.data.name && set.reads(key);
  });
}

}  // namespace

void throw_misfit(const recipe::Recipe& recipe, const at::Tensor& inputs, const c10::Error& error) {
  const auto sizes = inputs.sizes().slice(1);
  const bool pictures = sizes.size() == 3, volumes = sizes.size() == 4;
  std::string hint = "Check the layers of the model.";
  if (sizes.empty())
    hint = "Give each example a dimension for its values: inputs of [N, 1] instead of [N].";
  if (pictures)
    hint = text(
        "Check ",
        reads_key(recipe, "scale") ? "'scale' in [data], which may make them too small, and " : "",
        "'channels' in [model]: they have ", sizes[0], ".");
  if (volumes)
    hint = text(
        "Check 'patch' in [data], which may be too small for 'depth' and 'pooling' in "
        "[model], and 'channels' in [model]: they have ",
        sizes[0], ".");
  if (pictures && recipe.model.name == "mlp")
    hint = text("It takes vectors: set channels = ", sizes[0] * sizes[1] * sizes[2],
                " in [model], the number of values in an image.");
  if (pictures && recipe.model.name == "toy")
    hint = "It takes vectors, not images; 'mlp' flattens images.";
  if (is_about_channels(error.what_without_backtrace(), sizes) && recipe.model.channels != sizes[0])
    hint = text("Set channels = ", sizes[0], " in [model]: ",
                pictures ? "the data have this number of channels."
                         : "a sample of the data has this number of values.");
  const std::string_view why = error.what_without_backtrace();
  if (why.find("more than 1 value per channel") != std::string_view::npos) {
    const bool may_be_small = volumes || (pictures && reads_key(recipe, "scale"));
    hint =
        text(may_be_small ? hint + "\n" : "",
             "A batch norm needs more than one value for each channel of a micro-batch: use fewer "
             "micro-batches ('micro_batches' in [pipeline]) or a larger 'batch' in [train].");
  }
  if (recipe.mesh.tensor > 1 && !is_transformer(recipe))
    hint += text("\nOr the plan of its split does not fit: ",
                 recipe.mesh.split_layers.empty() ? "--mesh tensor=1 shows whether it does."
                                                  : "see 'split_layers' in [mesh].");
  const std::string size = sizes.empty() ? "one number each, without a dimension" : "";
  throw UsageError(text("the model '", recipe.model.name, "' cannot take these inputs of ", size,
                        join(sizes, " x "),
                        pictures  ? " (channels, height, width)"
                        : volumes ? " (channels, slices, rows, columns)"
                                  : "",
                        ":\n  ", error.what_without_backtrace()),
                   {.hint = std::move(hint)});
}

NamedTensors weights_of(const Pipeline& pipeline) {
  NamedTensors all = pipeline.named_parameters();
  for (auto& buffer : pipeline.named_buffers()) all.push_back(std::move(buffer));
  return all;
}

int optimizer_state_factor(const recipe::Recipe::Optimizer& optimizer) {
  if (optimizer.name == "adam" || optimizer.name == "adamw") return optimizer.amsgrad ? 3 : 2;
  const bool momentum = optimizer.momentum > 0 || cycles_momentum(optimizer);
  return (optimizer.name == "rmsprop" ? 1 : 0) + (momentum ? 1 : 0) + (optimizer.centered ? 1 : 0);
}

void check_shares(const recipe::Recipe& recipe, std::int64_t training_examples) {
  const std::int64_t last = training_examples % recipe.train.batch;
  if (recipe.train.drop_last || last == 0 || last >= recipe.mesh.parts()) return;
  throw UsageError(
      text("the last batch of an epoch has ", counted(last, "example"),
           ", and [mesh] shares each batch between ", recipe.mesh.parts(), " replicas"),
      {.hint = text("Use at most ", last, last == 1 ? " replica" : " replicas",
                    ". A new run can also drop that batch (--drop-last true) or choose another "
                    "'batch'.")});
}

std::int64_t largest_share_of(const recipe::Recipe& recipe) {
  return (recipe.train.batch + recipe.mesh.parts() - 1) / recipe.mesh.parts();
}

int micro_batches_of(const recipe::Recipe& recipe) {
  const std::int64_t size = recipe.pipeline.split_size;
  const std::int64_t batch = largest_share_of(recipe);
  return size > 0 ? pipeline::micro_batch_count_by_size(batch, size)
                  : static_cast<int>(std::min(recipe.pipeline.micro_batches, batch));
}

int largest_micro_batch_of(const recipe::Recipe& recipe) {
  const std::int64_t batch = largest_share_of(recipe);
  if (recipe.pipeline.split_size > 0)
    return static_cast<int>(std::min(recipe.pipeline.split_size, batch));
  const std::int64_t pieces = micro_batches_of(recipe);
  return static_cast<int>((batch + pieces - 1) / pieces);
}

std::string core_lending(const recipe::Recipe& recipe, Lending lending) {
  if (!recipe.pipeline.lend_cores) return "";
  return lending == Lending::Possible
             ? "cores lent"
             : "no cores lent: each stage needs a virtual device of its own";
}

RunPlan plan_of_recipe(const recipe::Recipe& recipe, const UserParts& own) {
  RunPlan plan;
  plan.name = recipe.name;
  plan.model = recipe.model.name;
  plan.balance_from = recipe.pipeline.balance.empty() ? "measured" : "given";
  plan.schedule = recipe.pipeline.schedule;
  plan.recompute = join(recipe.pipeline.recompute, ", ");
  plan.channels_last = memory_format_of(recipe) == at::MemoryFormat::ChannelsLast;
  plan.requested_micro_batches = recipe.pipeline.micro_batches;
  plan.batch = recipe.train.batch;
  plan.accumulate = recipe.train.accumulate;
  plan.parts = recipe.mesh.parts();
  plan.precision = recipe.train.precision;
  plan.epochs = recipe.train.epochs;
  plan.max_steps = recipe.train.max_steps;
  plan.log_every = recipe.train.log_every;
  plan.metric = metric_of(recipe, own);
  return plan;
}

void add_suggestion(const Pipeline& pipeline, RunPlan* plan) {
  const bool fits =
      std::none_of(plan->stages.begin(), plan->stages.end(), [](const RunPlan::Stage& stage) {
        return stage.budget > 0 && stage.predicted_peak > stage.budget;
      });
  if (!fits) plan->suggestion = pipeline.suggest_fit();
}

void count_parameters(const NamedTensors& parameters, const nn::ParameterSlices& slices,
                      RunPlan* plan) {
  for (const auto& [name, parameter] : parameters) {
    const auto slice = slices.find(name);
    const std::int64_t numbers =
        slice == slices.end() ? parameter.numel() : c10::multiply_integers(slice->second.whole);
    plan->parameters += numbers;
    if (!parameter.requires_grad()) plan->frozen_parameters += numbers;
  }
}

RunPlan make_plan(const recipe::Recipe& recipe, const Pipeline& pipeline, const nn::Layers& model,
                  const std::vector<Device>& devices, const Task& task,
                  const std::optional<Prediction>& prediction, const UserParts& own) {
  RunPlan plan = plan_of_recipe(recipe, own);
  plan.devices = describe_devices(devices);
  plan.layers = static_cast<int>(model.size());
  count_parameters(pipeline.named_parameters(), {}, &plan);
  plan.balance = pipeline.balance();
  plan.micro_batches = micro_batches_of(recipe);
  plan.core_lending =
      core_lending(recipe, pipeline.lends_cores() ? Lending::Possible : Lending::Impossible);
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    RunPlan::Stage row;
    row.layers = plan.balance[static_cast<std::size_t>(stage)];
    if (prediction)
      row.predicted_peak = prediction->stage_peaks.at(static_cast<std::size_t>(stage));
    if (pipeline.has_stage(stage)) {
      const Device& device = pipeline.device(stage);
      row.device = device_name(device.torch);
      row.budget = device.budget;
    }
    plan.stages.push_back(row);
  }
  add_suggestion(pipeline, &plan);
  if (prediction) {
    plan.predicted_seconds = prediction->seconds;
    plan.predicted_optimizer_seconds = prediction->optimizer_seconds;
    plan.predicted_idle = prediction->idle;
    plan.bytes_sent = prediction->bytes_sent;
    plan.network = prediction->network;
    plan.tensor = prediction->tensor;
    plan.predicted_communication_seconds = prediction->communication_seconds;
  }
  plan.synthetic_data = task.synthetic;
  plan.training_examples = task.training->examples();
  plan.validation_examples = task.validation ? task.validation->examples() : 0;
  plan.steps_per_epoch = task.training->batches();
  return plan;
}

}  // namespace trestle::train
