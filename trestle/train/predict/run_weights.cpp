#include "trestle/train/predict/run_weights.h"
#include "trestle/train/recipe_schedule.h"

#include <ATen/Functions.h>

#include <charconv>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/safetensors.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/run_folder/run_paths.h"
#include "trestle/train/setup.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

TrainedFor trained_for(const fs::path& file, const checkpoint::TensorFile& weights) {
  for (const fs::path& folder : {file, file.parent_path()})
    if (checkpoint::is_checkpoint(folder)) {
      const checkpoint::TrainState state = checkpoint::read_train_state(folder);
      return {.epochs = state.epoch, .steps = state.step};
    }
  const auto number = [&](const char* key) {
    std::int64_t value = 0;
    const auto found = weights.metadata.find(key);
    if (found != weights.metadata.end())
      std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
    return value;
  };
  return {.epochs = number("epoch"), .steps = number("step")};
}

// Such weights give a mask of class 0, or a class of probability NaN, for every image.
void refuse_nonfinite(const checkpoint::TensorFile& file, const fs::path& path) {
  for (const auto& [name, tensor] : file.tensors) {
    if (!tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>()) continue;
    throw FormatError(text("the weight '", name, "' has values that are infinite or NaN"),
                      {.file = path.string(),
                       .hint = "The training had diverged when they were saved: use an earlier "
                               "epoch's, or train again with a lower learning_rate."});
  }
}

// Files have no padded rows.
recipe::Recipe recipe_of_files(const RunFolder& folder) {
  recipe::Recipe recipe = seen_from_here(folder, recipe_of(folder));
  recipe.transformer.vocabulary_multiple = 1;
  return recipe;
}

}  // namespace

RunWeights find_run_weights(const fs::path& run, Checkpoint which) {
  if (!fs::is_regular_file(run) && !checkpoint::is_checkpoint(run)) {
    const RunFolder folder = open_run_folder(run);
    return {saved_weights(folder, which), recipe_of_files(folder)};
  }
  const fs::path whole = run.has_filename() ? run : run.parent_path();  // "runs/a/last/"
  const fs::path beside = fs::absolute(whole).parent_path();
  for (const fs::path& path : {beside, beside.parent_path()}) {
    if (!fs::exists(path / "recipe.toml")) continue;
    const RunFolder folder = open_run_folder(path);
    return {run, recipe_of_files(folder)};
  }
  throw UsageError(
      text(run.string(),
           ": there is no recipe.toml beside these weights, so their model is not known"),
      {.hint =
           "Name a run's folder or a file in it. `trestle evaluate` with --text or --choices also "
           "takes a language model of Hugging Face or a GGUF file."});
}

std::unique_ptr<Pipeline> make_trained_pipeline(const RunWeights& weights, const nn::Layers& model,
                                                const std::vector<Device>& devices,
                                                const at::Tensor& sample, TrainedFor* how_far) {
  recipe::Recipe recipe = weights.recipe;
  // The run's stages fit the run's devices only. Others have a stage each.
  const auto table = table_of(recipe);
  const std::size_t stages =
      table ? static_cast<std::size_t>(table->stages) : recipe.pipeline.balance.size();
  if (stages > 0 && devices.size() != 1 && devices.size() != rank_count(recipe, stages)) {
    const recipe::Recipe::Pipeline usual;
    recipe.pipeline.balance.clear();
    recipe.pipeline.schedule = usual.schedule;
    recipe.pipeline.table.clear();
    recipe.pipeline.stages_per_rank = usual.stages_per_rank;
  }
  recipe.pipeline.recompute = {"never"};  // of backwards, and of the run's stages
  auto pipeline = with_inputs_named(
      recipe, sample, [&] { return make_pipeline(recipe, model, devices, {.sample = {sample}}); });
  NamedTensors into = pipeline->named_parameters();
  for (auto& buffer : pipeline->named_buffers()) into.push_back(buffer);
  const checkpoint::TensorFile file = checkpoint::read_weights(weights.file);
  checkpoint::copy_into(file.tensors, into, weights.file.string());
  refuse_nonfinite(file, weights.file);
  if (how_far != nullptr) *how_far = trained_for(weights.file, file);
  return pipeline;
}

}  // namespace trestle::train
