#include "trestle/recipe/recipe_fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "trestle/recipe/make_field.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"

namespace trestle::recipe {

namespace {

void add_model_fields(std::vector<Field>& fields) {
  using M = Recipe::Model;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::model, "model", member, rest...));
  };
  add(&M::name, "name", "which model");
  add(&M::classes, "classes", "number of classes; 0 = the model's default", Limits{0, many});
  add(&M::channels, "channels", "channels of the input image; 0 = the model's default",
      Limits{0, many});
  add(&M::width, "width",
      "channels after the first block, which scales all others; 0 = the model's default",
      Limits{0, many});
  add(&M::bilinear, "bilinear",
      "unet, unet3d: up-sampling by interpolation instead of transposed convolutions");
  add(&M::depth, "depth", "unet3d: levels below the first; 0 = the model's default",
      Limits{0, many});
  add(&M::pooling, "pooling",
      "unet3d: the factors of each level's pooling for slices, rows and columns, such as "
      "1x2x2,2x2x2; empty: 2x2x2 everywhere");
  add(&M::memory_format, "memory_format",
      "memory format of images and of the weights of 2-d convolutions; channels_last is faster for "
      "most of them",
      Limits{.choices = {"contiguous", "channels_last"}});
  add(&M::weights, "weights",
      "a file with initial weights, from Python's torch.save(model.state_dict(), file) or as "
      "safetensors");
  add(&M::weights_strict, "weights_strict",
      "weights: the names in the file must be those of the model; false: load what fits, and "
      "report the rest");
}

void add_data_fields(std::vector<Field>& fields) {
  using D = Recipe::Data;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::data, "data", member, rest...));
  };
  add(&D::name, "name", "which data set");
  add(&D::images, "images", "carvana, segmentation, volumes: the folder of images");
  add(&D::masks, "masks", "carvana, segmentation, volumes: the folder of masks");
  add(&D::folder, "folder",
      "mnist, fashion_mnist: the folder of the four IDX files; classification: the folder with a "
      "folder for each class");
  add(&D::input_array, "input_array",
      "arrays: x.npy or x.pt, or set.npz:x, set.pt:x for the array x in a file");
  add(&D::target_array, "target_array", "arrays: the same for the targets");
  add(&D::mask_suffix, "mask_suffix",
      "segmentation, volumes: the suffix that a mask's name adds to its image's name, such as "
      "_mask");
  add(&D::mask_values, "mask_values",
      "segmentation, carvana, volumes: the mask values of class 0, 1, ..., such as 0,255 or "
      "#000000,#ff8000; empty: found in the masks (carvana: 0, 1, ...)");
  add(&D::mask_ignore, "mask_ignore",
      "segmentation, carvana, volumes: mask values that count neither in the loss nor in the "
      "metric, such "
      "as 255");
  add(&D::class_names, "class_names",
      "classification: the folders of class 0, 1, ...; empty: sorted by name");
}

void add_volume_fields(std::vector<Field>& fields) {
  using D = Recipe::Data;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::data, "data", member, rest...));
  };
  add(&D::patch, "patch",
      "volumes: slices, rows and columns of a patch, such as [16, 64, 64]: the model's input",
      Limits{1, many});
  add(&D::patches_per_volume, "patches_per_volume",
      "volumes: patches drawn from each volume in an epoch", Limits{1, many});
  add(&D::foreground, "foreground",
      "volumes: the share of patches around a voxel of a class above 0, all classes equally often",
      Limits{0, 1});
  add(&D::normalize, "normalize",
      "volumes: volume = mean 0 and deviation 1 for each volume and channel; none = values as in "
      "the file",
      Limits{.choices = {"volume", "none"}});
  add(&D::spacing, "spacing",
      "volumes: the spacing that all must have, such as \"2 x 1 x 1 mm\"; empty: read from the "
      "files; any: voxels of any size are taken as equal");
  add(&D::flip_axes, "flip_axes",
      "volumes: mirror each training patch along each of these axes with probability one half",
      Limits{.choices = {"slices", "rows", "columns"}});
  add(&D::intensity, "intensity",
      "volumes: change the mean and the deviation of each training patch at random by up to this "
      "share of its deviation",
      Limits{0, 0.99});
  add(&D::overlap, "overlap",
      "volumes: the share of a window that its neighbour covers too when whole volumes are "
      "predicted",
      Limits{0, 0.95});
  add(&D::blend, "blend", "volumes: the weights of overlapping windows in a prediction",
      Limits{.choices = {"gaussian", "linear", "constant"}});
}

void add_example_fields(std::vector<Field>& fields) {
  using D = Recipe::Data;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::data, "data", member, rest...));
  };
  add(&D::scale, "scale", "image files: the factor by which images are scaled down, 0 < scale <= 1",
      Limits{1e-6, 1});
  add(&D::image_width, "image_width",
      "image files: the width in pixels of every image; 0 = its own width times scale",
      Limits{0, 65500});
  add(&D::image_height, "image_height",
      "image files: the height in pixels of every image; 0 = its own height times scale",
      Limits{0, 65500});
  add(&D::validation, "validation",
      "share of the data for validation, if the data set has no validation data of its own",
      Limits{0, 0.99});
  add(&D::split_seed, "split_seed", "seed of the validation split", Limits{0, 9e18});
  add(&D::workers, "workers", "threads that load batches in advance",
      Limits{1, 256, {}, OnResume::MayChange});
  add(&D::flip, "flip", "training images: mirror each with probability one half",
      Limits{.choices = {"none", "horizontal", "vertical", "both"}});
  add(&D::crop, "crop",
      "training images: crop up to this share of both sides at random, and enlarge the rest",
      Limits{0, 0.99});
  add(&D::colour, "colour",
      "training images: change brightness, contrast and saturation at random by up to this share",
      Limits{0, 0.99});
  add(&D::synthesize, "synthesize",
      "if the data are missing: the number of synthetic examples to make in a folder beside them "
      "(...-synthetic) and to train on; 0 = none",
      Limits{0, many});
  add(&D::synthesize_width, "synthesize_width",
      "carvana, volumes: width of synthetic images in pixels", Limits{16, 16384});
  add(&D::synthesize_height, "synthesize_height",
      "carvana, volumes: height of synthetic images in pixels", Limits{16, 16384});
  add(&D::synthesize_depth, "synthesize_depth", "volumes: slices of synthetic volumes",
      Limits{8, 2048});
  add_volume_fields(fields);
  add(&D::shape, "shape", "random: the shape of one example, such as [3, 128, 128]",
      Limits{1, many});
  add(&D::count, "count", "random, and tokens in random order: number of examples in an epoch",
      Limits{0, many});
  add(&D::targets, "targets",
      "random: the targets, with one number for each class: one_hot has a 1 among zeros, class "
      "is the index of a class, normal has normal numbers",
      Limits{.choices = {"one_hot", "class", "normal"}});
}

void add_rank_fields(std::vector<Field>& fields) {
  using D = Recipe::Devices;
  using M = Recipe::Mesh;
  fields.push_back(
      field(&Recipe::devices, "devices", &D::use, "use",
            "cpu, virtual:2x512MiB, cuda:0,cuda:1 or cuda:all: one for each stage, or one for all",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::devices, "devices", &D::threads, "threads",
            "CPU threads of an operator; 0 = all cores for cpu, cores / devices for virtual",
            {0, 4096, {}, OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::pipeline, "pipeline",
            "ranks of each pipeline; 0 = the number of ranks / (`replicate` x `shard` x `tensor`)",
            {0, 1000, {}, OnResume::MayChange}));
  fields.push_back(field(&Recipe::mesh, "mesh", &M::replicate, "replicate",
                         "data parallelism: the number of replicas, which split each batch",
                         {1, 1000, {}, OnResume::ChangesNumbers}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::shard, "shard",
            "sharded data parallelism: ranks that split each batch and shard the training state; "
            "combined with `replicate`, a batch has shard x replicate shares",
            {1, 1000, {}, OnResume::ChangesNumbers}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::tensor, "tensor",
            "tensor parallelism: ranks that split the layers of the model; of a transformer its "
            "heads, MLPs and vocabulary",
            {1, 1000, {}, OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::sequence_parallel, "sequence_parallel",
            "with `tensor`: norms, dropout and sums work on shards of the tokens, which takes less "
            "memory and sends the same bytes",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::split_layers, "split_layers",
            "with `tensor`: how the layers of a model other than a transformer are split, a rule "
            "for each, such as `net1 columns` and `net2 rows`; empty: the plan that the model "
            "comes with",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(field(&Recipe::mesh, "mesh", &M::shard_level, "shard_level",
                         "what is sharded over the ranks of `shard`: nothing; optimizer_state "
                         "(ZeRO-1); gradients too (ZeRO-2); "
                         "parameters too (ZeRO-3, FSDP)",
                         {.choices = {"none", "optimizer_state", "gradients", "parameters"},
                          .on_resume = OnResume::ChangesNumbers}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::units, "units",
            "level parameters: what is gathered and released together: layers (each one, least "
            "memory), stage (once per batch, least communication), a size such as 64MiB that "
            "joins layers, or names of layers that begin a unit",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::reshard, "reshard",
            "level parameters: release parameters after a forward (yes), keep them until the end "
            "of the batch (no), or the number of neighbouring ranks that keep them together",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(field(&Recipe::mesh, "mesh", &M::bucket, "bucket",
                         "the size of the buckets in which gradients are reduced, such as 25MiB; "
                         "empty: 25MiB, or an eighth of the weights if that is less",
                         {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::offload, "offload",
            "levels above none: keep the shards, and so the optimizer's state, in CPU memory",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::link, "link",
            "the bandwidth of each host's network, and the time of a message from one host to "
            "another, such as 100Mbit,5ms, for the prediction of a step; empty: ranks on several "
            "hosts measure it at start",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::ranks_per_host, "ranks_per_host",
            "with `link`, in a prediction without hosts: the number of ranks on each host; 0: each "
            "rank, or each row of `shard` with replicas, has a host of its own",
            {.smallest = 0, .largest = many, .on_resume = OnResume::MayChange}));
}

void add_plan_fields(std::vector<Field>& fields) {
  using P = Recipe::Plan;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::plan, "plan", member, rest...));
  };
  add(&P::automatic, "auto",
      "choose [mesh], [pipeline] and the number of devices before the run (docs/plan.md)",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::goal, "goal",
      "with `auto`: what is best, time is the fastest step and memory the smallest peak",
      Limits{.choices = {"time", "memory"}, .on_resume = OnResume::MayChange});
  add(&P::memory, "memory",
      "with `auto`: what a device may use, such as 40GiB; empty: the devices' own budget",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::keep, "keep",
      "with `auto`: search only plans with these, such as tensor=1,level=2; the keys are those of "
      "trestle plan --keep",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::device_count, "device_count",
      "with `auto`: the most devices that the plan may use; 0 = those of [devices] or [mesh]",
      Limits{0, 1000, {}, OnResume::MayChange});
}

void add_pipeline_fields(std::vector<Field>& fields) {
  using P = Recipe::Pipeline;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::pipeline, "pipeline", member, rest...));
  };
  add(&P::balance, "balance",
      "number of layers of each stage, for example [13, 9]; empty: balanced by measurement",
      Limits{1, many, {}, OnResume::MayChange});
  add(&P::micro_batches, "micro_batches", "number of micro-batches of a batch",
      Limits{1, many, {}, OnResume::ChangesNumbers});
  add(&P::split_size, "split_size",
      "samples of a micro-batch, the last one may have fewer, as torch's x.split(); 0 = use "
      "micro_batches",
      Limits{0, many, {}, OnResume::ChangesNumbers});
  add(&P::schedule, "schedule", "pipeline schedule", Limits{.on_resume = OnResume::MayChange});
  // Another schedule leaves the table of the last one behind.
  fields.back().set = [](Recipe& recipe, const FieldValue& value) {
    recipe.pipeline.schedule = std::get<std::string>(value);
    recipe.pipeline.table.clear();
  };
  add(&P::table, "table",
      "the table of `schedule`, where it is auto or a CSV file: the actions of each rank; a run "
      "fills it in",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::stages_per_rank, "stages_per_rank",
      "number of stages of each rank or device; 0 = the number that the schedule needs, or 2 if it "
      "takes any, as interleaved_1f1b does",
      Limits{0, many, {}, OnResume::MayChange});
  add(&P::backward_order, "backward_order", "gpipe: the order of the micro-batches' backwards",
      Limits{.choices = schedule::backward_order_names(), .on_resume = OnResume::MayChange});
  add(&P::recompute, "recompute",
      "activation checkpointing: recompute forwards instead of keeping their activations; one "
      "value, or one for each stage",
      Limits{.choices = schedule::recompute_names(), .on_resume = OnResume::MayChange});
  add(&P::checkpoint, "checkpoint",
      "activation checkpointing inside stages: names of layers that are recomputed one by one; "
      "layers for all; of a transformer, blocks for all blocks, or attention for the core of each "
      "attention",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::checkpoint_segments, "checkpoint_segments",
      "activation checkpointing inside stages: cut each stage into this many segments, and "
      "recompute "
      "each in its own backward; 0 = none",
      Limits{0, many, {}, OnResume::MayChange});
  add(&P::split_recomputed, "split_recomputed",
      "with `tensor`: each tensor rank keeps an even share of the input of each layer of "
      "`checkpoint`, and gathers it before the recomputation",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::batch_norm, "batch_norm",
      "when batch norms update their running statistics: each_micro_batch, whole_batch (deferred "
      "batch norm), or each_run (in recomputations too, as in torchgpipe)");
  add(&P::lend_cores, "lend_cores",
      "a stage on a virtual device uses the cores of idle stages, which changes the last bits of "
      "its results",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::deadline, "deadline", "seconds that a stage waits for another one before the run fails",
      Limits{0.001, many, {}, OnResume::MayChange});
}

// The field of an option that trestle/optim describes.
Field optimizer_field(const optim::OptimizerOption& option) {
  const std::string readers = option.readers(", ");
  std::string help = (readers.empty() ? "" : readers + ": ") + std::string(option.help);
  const OnResume on_resume =
      option.name == "learning_rate" ? OnResume::ChangesNumbers : OnResume::MustBeEqual;
  const Limits limits = option.is_switch() ? Limits{} : Limits{0, option.largest, {}, on_resume};
  return std::visit(
      [&]<class T>(T optim::OptimizerOptions::*member) {
        return field(&Recipe::optimizer, "optimizer", static_cast<T Recipe::Optimizer::*>(member),
                     std::string(option.name), std::move(help), limits);
      },
      option.member);
}

void add_optimizer_fields(std::vector<Field>& fields) {
  using O = Recipe::Optimizer;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::optimizer, "optimizer", member, rest...));
  };
  add(static_cast<std::string O::*>(&O::name), "name", "which optimizer");
  for (const optim::OptimizerOption& option : optim::optimizer_option_table)
    fields.push_back(optimizer_field(option));
  add(&O::clip_grad_norm, "clip_grad_norm",
      "clip gradients to this norm over all parameters; 0 = do not clip", Limits{0, 1e9});
  add(&O::frozen, "frozen",
      "layers or parameters that are not trained, as name patterns: [\"in\", \"down*\"]");
  add(&O::no_weight_decay, "no_weight_decay",
      "layers or parameters without weight decay; one_dimensional = all biases and norms");
  add(&O::rate_factors, "rate_factors",
      "multiples of the learning rate for layers or parameters: [\"in=0.1\", \"*.bias=2\"]");
}

void add_rate_fields(std::vector<Field>& fields) {
  using O = Recipe::Optimizer;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::optimizer, "optimizer", member, rest...));
  };
  add(&O::learning_rate_schedule, "learning_rate_schedule", "learning-rate schedule");
  add(&O::schedule_by, "schedule_by", "the unit of the schedule's lengths",
      Limits{.choices = {"step", "epoch"}});
  add(&O::schedule_length, "schedule_length",
      "cosine, cosine_decay, linear_decay, one_cycle: its length; 0 = the whole run after the "
      "warm-up",
      Limits{0, many});
  add(&O::decay_factor, "decay_factor", "step, multi_step: the factor of each decay",
      Limits{1e-9, 1e9});
  add(&O::decay_every, "decay_every", "step: the distance between decays", Limits{1, many});
  add(&O::milestones, "milestones",
      "multi_step: the steps or epochs that decay, for example [30, 60]", Limits{1, many});
  add(&O::one_cycle_rise, "one_cycle_rise",
      "one_cycle: the share of its length in which the rate rises", Limits{0, 1});
  add(&O::one_cycle_first_divisor, "one_cycle_first_divisor",
      "one_cycle: the first rate is learning_rate divided by this", Limits{1e-9, 1e9});
  add(&O::one_cycle_last_divisor, "one_cycle_last_divisor",
      "one_cycle: the last rate is the first one divided by this", Limits{1e-9, 1e9});
  add(&O::one_cycle_momentum, "one_cycle_momentum",
      "one_cycle: the momentum (beta1 of adam, adamw) falls while the rate rises and rises while "
      "it falls, instead of staying constant");
  add(&O::one_cycle_lowest_momentum, "one_cycle_lowest_momentum",
      "one_cycle_momentum: the momentum at the highest rate", Limits{0, 1});
  add(&O::one_cycle_highest_momentum, "one_cycle_highest_momentum",
      "one_cycle_momentum: the momentum at both ends", Limits{0, 1});
  add(&O::warm_up, "warm_up", "length of the linear warm-up before the schedule begins",
      Limits{0, many});
  add(&O::warm_up_from, "warm_up_from", "warm_up: its first rate, as a share of the learning rate",
      Limits{1e-9, 1});
  add(&O::min_learning_rate, "min_learning_rate",
      "cosine, cosine_decay, linear_decay, plateau: the lowest rate", Limits{0, 1e6});
  add(&O::plateau, "plateau", "lower the learning rate when the validation metric stops improving");
  add(&O::plateau_patience, "plateau_patience",
      "plateau: epochs without improvement before the rate is lowered", Limits{0, many});
  add(&O::plateau_factor, "plateau_factor", "plateau: the factor of each reduction",
      Limits{1e-9, 1});
  add(&O::plateau_threshold, "plateau_threshold",
      "plateau: the smallest change that counts as an improvement", Limits{0, 1e9});
  add(&O::plateau_threshold_mode, "plateau_threshold_mode",
      "plateau: the threshold is relative to the best so far, or absolute",
      Limits{.choices = {"relative", "absolute"}});
  add(&O::plateau_cooldown, "plateau_cooldown",
      "plateau: epochs after a reduction that do not count", Limits{0, many});
}

void add_run_fields(std::vector<Field>& fields) {
  using T = Recipe::Train;
  auto run = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::train, "train", member, rest...));
  };
  run(&T::epochs, "epochs", "number of passes through the training data",
      Limits{1, many, {}, OnResume::MayChange});
  run(&T::max_steps, "max_steps",
      "end after this number of steps, also within an epoch; 0 = no limit",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::batch, "batch", "examples of a batch, over all replicas", Limits{1, many});
  run(&T::accumulate, "accumulate",
      "number of batches whose gradients accumulate into one step, as if they were one batch",
      Limits{1, many});
  run(&T::precision, "precision",
      "dtype of the computation; weights stay fp32, and fp16 uses a gradient scaler",
      Limits{.choices = {"fp32", "bf16", "fp16"}});
  run(&T::seed, "seed", "seed of all random numbers: weights, order of the data, dropout",
      Limits{0, 9e18});
  run(&T::loss, "loss", "loss function to minimise");
  run(&T::metric, "metric", "validation metric");
  run(&T::drop_last, "drop_last", "drop the last training batch of an epoch if it is smaller");
  run(&T::deterministic, "deterministic",
      "use only operators with the same bits in each run, on a GPU too (cuDNN, cuBLAS), where they "
      "are slower; an operator without such a form is an error");
  run(&T::pictures, "pictures", "draw a picture after each epoch",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::sample_tokens, "sample_tokens",
      "gpt2, llama: tokens of the sample of text after each epoch; 0 = no sample",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::tensorboard, "tensorboard", "write the metrics as an event file for TensorBoard too",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::predict, "predict", "measure one batch first and print the predicted cost of a step",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::peak_tflops, "peak_tflops",
      "gpt2, llama: peak of all devices together in 10^12 floating-point operations per second, "
      "for "
      "MFU: the share of it that 6 N + 12 L H Q T operations for each token reach (PaLM, appendix "
      "B); 0 = unknown",
      Limits{0, 1e9, {}, OnResume::MayChange});
  run(&T::log_every, "log_every",
      "batches between two lines of progress in log.txt, and in a file or pipe; 0 = one line for "
      "each epoch",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::save_every, "save_every",
      "steps between two saves for --resume; 0 = at the end of each epoch",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::keep_best, "keep_best",
      "number of best epochs whose weights are kept; more than one are in the folder best/",
      Limits{1, 10000, {}, OnResume::MayChange});
  run(&T::patience, "patience",
      "end after this number of epochs without improvement of the validation metric; 0 = never",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::min_delta, "min_delta", "patience: the smallest change that counts as an improvement",
      Limits{0, 1e9, {}, OnResume::MayChange});
  run(&T::runs, "runs", "the folder for run folders", Limits{.on_resume = OnResume::MayChange});
  run(&T::deepspeed_checkpoints, "deepspeed_checkpoints",
      "save each checkpoint also as a folder that DeepSpeed resumes from: deepspeed/ in the run's "
      "folder",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::deepspeed_config, "deepspeed_config",
      "settings from `trestle train --deepspeed FILE` that have no key of their own, as JSON with "
      "DeepSpeed's keys");
}

}  // namespace

const std::vector<Field>& recipe_fields() {
  static const std::vector<Field> fields = [] {
    std::vector<Field> made;
    add_model_fields(made);
    add_transformer_fields(made);
    add_adapter_fields(made);
    add_data_fields(made);
    add_example_fields(made);
    add_token_fields(made);
    add_rank_fields(made);
    add_plan_fields(made);
    add_pipeline_fields(made);
    add_optimizer_fields(made);
    add_rate_fields(made);
    add_run_fields(made);
    return made;
  }();
  return fields;
}

const Field* find_field(std::string_view name) {
  const Field* found = nullptr;
  for (const Field& field : recipe_fields()) {
    if (field.name() == name) return &field;
    if (field.key == name) {
      if (found != nullptr) return nullptr;
      found = &field;
    }
  }
  return found;
}

const Field* find_field_of_other_programs(std::string_view word) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 15> other_names = {
      {{"batchsize", "train.batch"},
       {"trainbatchsize", "train.batch"},
       {"bs", "train.batch"},
       {"lr", "optimizer.learning_rate"},
       {"numepochs", "train.epochs"},
       {"nepochs", "train.epochs"},
       {"maxepochs", "train.epochs"},
       {"numworkers", "data.workers"},
       {"inchannels", "model.channels"},
       {"numclasses", "model.classes"},
       {"nclasses", "model.classes"},
       {"chunks", "pipeline.micro_batches"},
       {"microbatches", "pipeline.micro_batches"},
       {"device", "devices.use"},
       {"devices", "devices.use"}}};
  std::string plain;  // "batch_size", "batch-size" and "BatchSize" are one name
  for (const char c : word)
    if (c != '_' && c != '-')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [name, field] : other_names)
    if (name == plain) return find_field(field);
  return nullptr;
}

bool key_is_unique(const Field& field) { return find_field(field.key) == &field; }

}  // namespace trestle::recipe
