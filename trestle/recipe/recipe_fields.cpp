#include "trestle/recipe/recipe_fields.h"

#include <algorithm>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"

namespace trestle::recipe {

namespace {

using OnResume = Field::OnResume;

template <class T>
constexpr FieldType type_of() {
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
          type_of<T>(),
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
}

void add_data_fields(std::vector<Field>& fields) {
  using D = Recipe::Data;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::data, "data", member, rest...));
  };
  add(&D::name, "name", "which data set");
  add(&D::images, "images", "carvana: the folder of images");
  add(&D::masks, "masks", "carvana: the folder of masks, <image>_mask.*");
  add(&D::folder, "folder", "mnist: the folder of the four IDX files");
  add(&D::scale, "scale", "carvana: images are made smaller by this, 0 < scale <= 1",
      Limits{1e-6, 1});
  add(&D::validation, "validation", "carvana: share of the images that is kept for validation",
      Limits{0, 0.99});
  add(&D::split_seed, "split_seed", "carvana: seed of the validation split, of its own",
      Limits{0, 9e18});
  add(&D::workers, "workers", "threads that load ahead", Limits{1, 256, {}, OnResume::MayChange});
  add(&D::synthesize, "synthesize",
      "if the folders are missing, make so many synthetic examples in them; 0 = do not",
      Limits{0, many});
  add(&D::synthesize_width, "synthesize_width", "carvana: width of synthetic images in pixels",
      Limits{16, 16384});
  add(&D::synthesize_height, "synthesize_height", "carvana: height of synthetic images in pixels",
      Limits{16, 16384});
}

void add_pipeline_fields(std::vector<Field>& fields) {
  using D = Recipe::Devices;
  using P = Recipe::Pipeline;
  fields.push_back(
      field(&Recipe::devices, "devices", &D::use, "use",
            "cpu, virtual:2x512MiB, or cuda:0,cuda:1: one for each stage, or one for all",
            {.on_resume = OnResume::MayChange}));
  fields.push_back(
      field(&Recipe::devices, "devices", &D::threads, "threads",
            "CPU threads of one operator; 0 = all cores for cpu, cores / devices for virtual",
            {0, 4096, {}, OnResume::MayChange}));
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::pipeline, "pipeline", member, rest...));
  };
  add(&P::balance, "balance", "layers of each stage, for example [13, 9]; left out: measured",
      Limits{1, many});
  add(&P::micro_batches, "micro_batches", "pieces that a batch is cut into", Limits{1, many});
  add(&P::schedule, "schedule", "order of the work");
  add(&P::backward_order, "backward_order", "gpipe: which micro-batch's backward comes first",
      Limits{.choices = schedule::backward_order_names()});
  add(&P::recompute, "recompute",
      "activation checkpointing: run forwards again instead of keeping what they computed; one "
      "word, or one for each stage",
      Limits{.choices = schedule::recompute_names()});
  add(&P::batch_norm, "batch_norm",
      "what moves the running statistics of batch norms: each_micro_batch, whole_batch (deferred "
      "batch norm), or each_run (recomputations too, as in torchgpipe)");
  add(&P::deadline, "deadline", "seconds that one stage waits for another before it gives up",
      Limits{0.001, many});
}

void add_training_fields(std::vector<Field>& fields) {
  using O = Recipe::Optimizer;
  using T = Recipe::Train;
  auto add = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::optimizer, "optimizer", member, rest...));
  };
  add(&O::name, "name", "which optimizer");
  add(&O::learning_rate, "learning_rate", "step size", Limits{0, 1e6});
  add(&O::momentum, "momentum", "sgd, rmsprop: momentum", Limits{0, 1});
  add(&O::weight_decay, "weight_decay", "weight decay", Limits{0, 1e6});
  add(&O::clip_grad_norm, "clip_grad_norm",
      "scale gradients down whose norm, all together, is larger; 0 = as they are", Limits{0, 1e9});
  add(&O::plateau, "plateau", "lower the learning rate when the validation metric stops rising");
  add(&O::plateau_patience, "plateau_patience",
      "plateau: epochs without a new best before it is lowered", Limits{0, many});
  add(&O::plateau_factor, "plateau_factor", "plateau: what it is multiplied by", Limits{1e-9, 1});
  auto run = [&](auto member, auto... rest) {
    fields.push_back(field(&Recipe::train, "train", member, rest...));
  };
  run(&T::epochs, "epochs", "how often it sees all training data",
      Limits{1, many, {}, OnResume::MayChange});
  run(&T::batch, "batch", "examples of one step", Limits{1, many});
  run(&T::seed, "seed", "of everything random: weights, order of the data, dropout",
      Limits{0, 9e18});
  run(&T::loss, "loss", "loss function to minimise");
  run(&T::metric, "metric", "validation metric");
  run(&T::drop_last, "drop_last", "leave out the last training batch of an epoch if it is smaller");
  run(&T::pictures, "pictures", "draw a picture each epoch",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::predict, "predict", "measure one batch first and print what a step will cost",
      Limits{.on_resume = OnResume::MayChange});
  run(&T::save_every, "save_every",
      "steps between two saves for --resume; 0 = at the end of each epoch",
      Limits{0, many, {}, OnResume::MayChange});
  run(&T::runs, "runs", "the folder in which the run's folder is made",
      Limits{.on_resume = OnResume::MayChange});
}

}  // namespace

const std::vector<Field>& recipe_fields() {
  static const std::vector<Field> fields = [] {
    std::vector<Field> made;
    add_model_fields(made);
    add_data_fields(made);
    add_pipeline_fields(made);
    add_training_fields(made);
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
