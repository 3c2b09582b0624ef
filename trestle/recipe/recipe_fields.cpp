#include "trestle/recipe/recipe_fields.h"

#include <algorithm>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"

namespace trestle::recipe {

namespace {

using OnResume = Field::OnResume;

template <class T>
constexpr FieldType field_type_of() {
  if constexpr (std::is_same_v<T, bool>) return FieldType::Switch;
  if constexpr (std::is_same_v<T, std::int64_t>) return FieldType::Integer;
  if constexpr (std::is_same_v<T, double>) return FieldType::Number;
  if constexpr (std::is_same_v<T, std::string>) return FieldType::Text;
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return FieldType::Integers;
  return FieldType::Texts;
}

struct Limits {
  double smallest = -1e300;
  double largest = 1e300;
  std::vector<std::string> choices = {};
  OnResume on_resume = OnResume::MustBeEqual;
};

template <class Section, class T>
Field field(Section Recipe::*section, std::string section_name, T Section::*member, std::string key,
            std::string help, Limits limits = {}) {
  return {std::move(section_name),
          std::move(key),
          field_type_of<T>(),
          std::move(help),
          limits.smallest,
          limits.largest,
          std::move(limits.choices),
          [=](const Recipe& recipe) -> FieldValue { return recipe.*section.*member; },
          [=](Recipe& recipe, const FieldValue& value) {
            recipe.*section.*member = std::get<T>(value);
          },
          limits.on_resume};
}

constexpr double many = 1e9;

void add_model_fields(std::vector<Field>& fields) {
  using M = Recipe::Model;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::model, "model", member, rest...));
  };
  add(&M::name, "name", "which model");
  add(&M::classes, "classes", "how many classes it tells apart; 0 = the model's own",
      Limits{0, many});
  add(&M::channels, "channels", "channels of the input image; 0 = the model's own",
      Limits{0, many});
  add(&M::width, "width", "channels after the first block, the others follow; 0 = the model's own",
      Limits{0, many});
  add(&M::bilinear, "bilinear", "unet: bilinear up-sampling instead of transposed convolutions");
  add(&M::memory_format, "memory_format",
      "order of images and of the weights of 2-d convolutions in memory; channels_last is faster "
      "for most of them",
      Limits{.choices = {"contiguous", "channels_last"}});
  add(&M::weights, "weights",
      "a file of weights to begin with: of Python's torch.save(model.state_dict(), file), or "
      "safetensors");
  add(&M::weights_strict, "weights_strict",
      "weights: every name of the model must be in the file, and the other way round; false: load "
      "what fits, and say what was left");
}

void add_data_fields(std::vector<Field>& fields) {
  using D = Recipe::Data;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::data, "data", member, rest...));
  };
  add(&D::name, "name", "which data set");
  add(&D::images, "images", "carvana, segmentation: the folder of images");
  add(&D::masks, "masks", "carvana, segmentation: the folder of masks");
  add(&D::folder, "folder",
      "mnist, fashion_mnist: the folder of the four IDX files; classification: of a folder for "
      "each class");
  add(&D::input_array, "input_array",
      "arrays: x.npy or x.pt, or set.npz:x, set.pt:x for the array x in a set");
  add(&D::target_array, "target_array", "arrays: the same for the targets");
  add(&D::mask_suffix, "mask_suffix",
      "segmentation: what follows an image's name in its mask's name, as _mask; empty: nothing");
  add(&D::mask_values, "mask_values",
      "segmentation, carvana: what a mask's pixels of class 0, 1, ... are, as 0,255 or "
      "#000000,#ff8000; left out: found in the masks (carvana: 0, 1, ...)");
  add(&D::mask_ignore, "mask_ignore",
      "segmentation, carvana: values of a mask's pixels that count neither in the loss nor in the "
      "metric, as 255");
  add(&D::class_names, "class_names",
      "classification: the folders of class 0, 1, ...; left out: by their names");
  add(&D::scale, "scale", "of image files: made smaller by this, 0 < scale <= 1", Limits{1e-6, 1});
  add(&D::image_width, "image_width",
      "of image files: every one is made so many pixels wide; 0 = its own width times scale",
      Limits{0, 65500});
  add(&D::image_height, "image_height",
      "of image files: every one is made so many pixels high; 0 = its own height times scale",
      Limits{0, 65500});
  add(&D::validation, "validation",
      "share of the data that is kept for validation, where they have no part of their own for it",
      Limits{0, 0.99});
  add(&D::split_seed, "split_seed", "seed of the validation split, of its own", Limits{0, 9e18});
  add(&D::workers, "workers", "threads that load ahead", Limits{1, 256, {}, OnResume::MayChange});
  add(&D::flip, "flip", "training images: each is mirrored with probability one half",
      Limits{.choices = {"none", "horizontal", "vertical", "both"}});
  add(&D::crop, "crop",
      "training images: up to this share of both sides is cut off at random, the rest enlarged",
      Limits{0, 0.99});
  add(&D::colour, "colour",
      "training images: brightness, contrast and saturation change at random by up to this share",
      Limits{0, 0.99});
  add(&D::synthesize, "synthesize",
      "if the data are missing, make so many synthetic examples in a folder beside them "
      "(...-synthetic), and train on those; 0 = do not",
      Limits{0, many});
  add(&D::synthesize_width, "synthesize_width", "carvana: width of synthetic images in pixels",
      Limits{16, 16384});
  add(&D::synthesize_height, "synthesize_height", "carvana: height of synthetic images in pixels",
      Limits{16, 16384});
  add(&D::shape, "shape", "random: the shape of one example, as [3, 128, 128]", Limits{1, many});
  add(&D::count, "count", "random: how many examples an epoch has", Limits{0, many});
  add(&D::targets, "targets",
      "random: what is to be learnt, of as many numbers as the model has classes: a 1 among zeros, "
      "the number of a class, or normal numbers",
      Limits{.choices = {"one_hot", "class", "normal"}});
}

void add_pipeline_fields(std::vector<Field>& fields) {
  using D = Recipe::Devices;
  using M = Recipe::Mesh;
  using P = Recipe::Pipeline;
  fields.push_back(
      field(&Recipe::devices, "devices", &D::use, "use",
            "cpu, virtual:2x512MiB, cuda:0,cuda:1 or cuda:all: one for each stage, or one for all",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::devices, "devices", &D::threads, "threads",
            "CPU threads of one operator; 0 = all cores for cpu, cores / devices for virtual",
            {0, 4096, {}, OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::mesh, "mesh", &M::pipeline, "pipeline",
            "ranks that share the stages of one pipeline; 0 = those that `replicate` and `shard` "
            "leave",
            {0, 1000, {}, OnResume::MayChange}));
  fields.push_back(field(&Recipe::mesh, "mesh", &M::replicate, "replicate",
                         "data parallelism: how many such pipelines take parts of each batch",
                         {1, 1000, {}, OnResume::ChangesNumbers}));
  fields.push_back(field(&Recipe::mesh, "mesh", &M::shard, "shard",
                         "the same, and these ranks divide the training state among them; with "
                         "`replicate` there are shard x replicate parts of each batch",
                         {1, 1000, {}, OnResume::ChangesNumbers}));
  fields.push_back(field(
      &Recipe::mesh, "mesh", &M::shard_level, "shard_level",
      "what the ranks of `shard` divide: nothing; what the optimizer remembers (ZeRO-1); gradients "
      "too (ZeRO-2); parameters too (ZeRO-3, FSDP)",
      {.choices = {"none", "optimizer_state", "gradients", "parameters"},
       .on_resume = OnResume::ChangesNumbers}));
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::pipeline, "pipeline", member, rest...));
  };
  add(&P::balance, "balance", "layers of each stage, for example [13, 9]; left out: measured",
      Limits{1, many, {}, OnResume::MayChange});
  add(&P::micro_batches, "micro_batches", "pieces that a batch is cut into",
      Limits{1, many, {}, OnResume::ChangesNumbers});
  add(&P::split_size, "split_size",
      "samples of a piece instead, the last one smaller, as torch's x.split(); 0 = by "
      "micro_batches",
      Limits{0, many, {}, OnResume::ChangesNumbers});
  add(&P::schedule, "schedule", "order of the work", Limits{.on_resume = OnResume::MayChange});
  add(&P::backward_order, "backward_order", "gpipe: which micro-batch's backward comes first",
      Limits{.choices = schedule::backward_order_names(), .on_resume = OnResume::MayChange});
  add(&P::recompute, "recompute",
      "activation checkpointing: run forwards again instead of keeping what they computed; one "
      "word, or one for each stage",
      Limits{.choices = schedule::recompute_names(), .on_resume = OnResume::MayChange});
  add(&P::batch_norm, "batch_norm",
      "what moves the running statistics of batch norms: each_micro_batch, whole_batch (deferred "
      "batch norm), or each_run (recomputations too, as in torchgpipe)");
  add(&P::lend_cores, "lend_cores",
      "a stage on a virtual device uses the cores of stages that have nothing to do; changes the "
      "last bits of what it computes",
      Limits{.on_resume = OnResume::MayChange});
  add(&P::deadline, "deadline", "seconds that one stage waits for another before it gives up",
      Limits{0.001, many, {}, OnResume::MayChange});
}

void add_optimizer_fields(std::vector<Field>& fields) {
  using O = Recipe::Optimizer;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::optimizer, "optimizer", member, rest...));
  };
  add(&O::name, "name", "which optimizer");
  add(&O::learning_rate, "learning_rate", "step size; with a schedule the one it goes by",
      Limits{0, 1e6, {}, OnResume::ChangesNumbers});
  add(&O::momentum, "momentum", "sgd, rmsprop: momentum", Limits{0, 1});
  add(&O::weight_decay, "weight_decay", "weight decay", Limits{0, 1e6});
  add(&O::nesterov, "nesterov", "sgd: Nesterov's momentum");
  add(&O::beta1, "beta1", "adam, adamw: how slowly the average of gradients moves", Limits{0, 1});
  add(&O::beta2, "beta2", "adam, adamw: how slowly the average of their squares moves",
      Limits{0, 1});
  add(&O::epsilon, "epsilon", "adam, adamw, rmsprop: added to the divisor", Limits{0, 1e6});
  add(&O::amsgrad, "amsgrad", "adam, adamw: divide by the largest average there was");
  add(&O::alpha, "alpha", "rmsprop: how slowly the average of squares moves", Limits{0, 1});
  add(&O::centered, "centered", "rmsprop: divide by the deviation from the mean");
  add(&O::clip_grad_norm, "clip_grad_norm",
      "scale gradients down whose norm, all together, is larger; 0 = as they are", Limits{0, 1e9});
  add(&O::frozen, "frozen",
      "layers or parameters that are not trained, as patterns of names: [\"in\", \"down*\"]");
  add(&O::no_weight_decay, "no_weight_decay",
      "those without weight decay; one_dimensional = all biases and norms");
  add(&O::rate_factors, "rate_factors",
      "those with a learning rate of their own, as a multiple: [\"in=0.1\", \"*.bias=2\"]");
}

void add_rate_fields(std::vector<Field>& fields) {
  using O = Recipe::Optimizer;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::optimizer, "optimizer", member, rest...));
  };
  add(&O::learning_rate_schedule, "learning_rate_schedule", "how the learning rate goes on");
  add(&O::schedule_by, "schedule_by", "what its lengths count",
      Limits{.choices = {"step", "epoch"}});
  add(&O::schedule_length, "schedule_length",
      "cosine, one_cycle: how long it takes; 0 = all of the run after the warm-up",
      Limits{0, many});
  add(&O::decay_factor, "decay_factor", "step, multi_step: what it is multiplied by",
      Limits{1e-9, 1e9});
  add(&O::decay_every, "decay_every", "step: how long it stays", Limits{1, many});
  add(&O::milestones, "milestones", "multi_step: when it is multiplied, for example [30, 60]",
      Limits{1, many});
  add(&O::one_cycle_rise, "one_cycle_rise", "one_cycle: the share in which it rises", Limits{0, 1});
  add(&O::one_cycle_first_divisor, "one_cycle_first_divisor",
      "one_cycle: it begins at learning_rate divided by this", Limits{1e-9, 1e9});
  add(&O::one_cycle_last_divisor, "one_cycle_last_divisor",
      "one_cycle: ... and ends at its beginning divided by this", Limits{1e-9, 1e9});
  add(&O::one_cycle_momentum, "one_cycle_momentum",
      "one_cycle: the momentum (beta1 of adam, adamw) falls while the rate rises and rises while "
      "it "
      "falls, instead of its own value");
  add(&O::one_cycle_lowest_momentum, "one_cycle_lowest_momentum",
      "one_cycle_momentum: where the rate is highest", Limits{0, 1});
  add(&O::one_cycle_highest_momentum, "one_cycle_highest_momentum",
      "one_cycle_momentum: at both ends", Limits{0, 1});
  add(&O::warm_up, "warm_up", "how long it rises in a line before its schedule begins",
      Limits{0, many});
  add(&O::warm_up_from, "warm_up_from", "warm_up: the share of it at which it begins",
      Limits{1e-9, 1});
  add(&O::min_learning_rate, "min_learning_rate", "cosine, plateau: the lowest", Limits{0, 1e6});
  add(&O::plateau, "plateau", "lower the learning rate when the validation metric stops rising");
  add(&O::plateau_patience, "plateau_patience",
      "plateau: epochs without a new best before it is lowered", Limits{0, many});
  add(&O::plateau_factor, "plateau_factor", "plateau: what it is multiplied by", Limits{1e-9, 1});
  add(&O::plateau_threshold, "plateau_threshold", "plateau: how much better is a new best",
      Limits{0, 1e9});
  add(&O::plateau_threshold_mode, "plateau_threshold_mode",
      "plateau: the threshold is a share of the best so far, or a difference",
      Limits{.choices = {"relative", "absolute"}});
  add(&O::plateau_cooldown, "plateau_cooldown",
      "plateau: epochs after it was lowered that do not count", Limits{0, many});
}

void add_run_fields(std::vector<Field>& fields) {
  using T = Recipe::Train;
  auto run = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::train, "train", member, rest...));
  };
  run(&T::epochs, "epochs", "how often it sees all training data",
      Limits{1, many, {}, OnResume::MayChange});
  run(&T::max_steps, "max_steps",
      "end after so many steps, in the middle of an epoch too; 0 = epochs alone",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::batch, "batch", "examples that go through the model at once", Limits{1, many});
  run(&T::accumulate, "accumulate",
      "batches whose gradients add up to those of one step, as if they were one batch",
      Limits{1, many});
  run(&T::precision, "precision",
      "of the arithmetic (weights stay fp32); fp16 with a gradient scaler",
      Limits{.choices = {"fp32", "bf16", "fp16"}});
  run(&T::seed, "seed", "of everything random: weights, order of the data, dropout",
      Limits{0, 9e18});
  run(&T::loss, "loss", "loss function to minimise");
  run(&T::metric, "metric", "validation metric");
  run(&T::drop_last, "drop_last", "leave out the last training batch of an epoch if it is smaller");
  run(&T::deterministic, "deterministic",
      "only operators that give the same bits at each run, on a GPU too (cuDNN, cuBLAS): slower "
      "there, and an operator that has no such form is refused");
  run(&T::pictures, "pictures", "draw a picture each epoch",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::tensorboard, "tensorboard",
      "write what metrics.jsonl has as an event file for TensorBoard",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::predict, "predict", "measure one batch first and print what a step will cost",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::log_every, "log_every",
      "batches between two lines in a file or pipe and in log.txt, of training and of validation; "
      "0 "
      "= one line an epoch",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::save_every, "save_every",
      "steps between two saves for --resume; 0 = at the end of each epoch",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::keep_best, "keep_best",
      "how many of the best epochs' weights are kept; of more than one all in the folder best/",
      Limits{1, 10000, {}, OnResume::MayChange});
  run(&T::patience, "patience",
      "end after so many epochs without a better validation metric; 0 = never",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::min_delta, "min_delta", "patience: how much better is better",
      Limits{0, 1e9, {}, OnResume::MayChange});
  run(&T::runs, "runs", "the folder in which the run's folder is made",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::deepspeed_config, "deepspeed_config",
      "what `trestle train --deepspeed FILE` takes from a file that no other key says: JSON with "
      "its "
      "keys");
}

}  // namespace

const std::vector<Field>& recipe_fields() {
  static const std::vector<Field> fields = [] {
    std::vector<Field> made;
    add_model_fields(made);
    add_data_fields(made);
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

bool key_is_unique(const Field& field) { return find_field(field.key) == &field; }

}  // namespace trestle::recipe
