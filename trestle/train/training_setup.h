#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trestle/deepspeed/config/to_recipe.h"
#include "trestle/parallel/stage_replicas.h"
#include "trestle/train/epoch_sample.h"
#include "trestle/train/optimizers/recipe_optimizers.h"
#include "trestle/train/optimizers/stage_optimizer.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/setup.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Everything that a recipe makes before the first step: devices, data, model, pipeline, optimizers
// and the plan with its prediction.
struct TrainingSetup {
  // All ranks of hooks.world construct it. Synthesizes missing data where [data] allows it; a run
  // that is resumed from its folder needs the data that it began with. Throws what train() throws.
  TrainingSetup(const recipe::Recipe& given, const TrainHooks& hooks,
                const RunFolder* resumed = nullptr);
  TrainingSetup(const TrainingSetup&) = delete;
  TrainingSetup& operator=(const TrainingSetup&) = delete;

  bool over_replicas() const { return ranks.replicas() > 1; }

  // Throws UsageError where the metric of the validation cannot rate the model's output for the
  // first example: otherwise the first epoch would be lost. All ranks call it, before `first` is
  // cleared.
  void check_metric();

  RunRanks ranks;
  // As given, with the paths of the data that were found, and with the sizes of a language model.
  recipe::Recipe recipe;
  std::optional<deepspeed::DeepspeedConfig> deepspeed;  // where the run has one
  std::unique_ptr<Progress> silent;                     // where the hooks have no progress
  Progress& progress;
  std::vector<Device> devices;  // of this rank
  Task task;
  std::optional<data::Batch> first;                   // of the training, as this rank reads it
  double data_mark = 0;                               // data_mark_of()
  std::shared_ptr<parallel::StageReplicas> replicas;  // null: one pipeline
  std::shared_ptr<RecipeOptimizers> optimizer_factory;
  std::unique_ptr<Pipeline> pipeline;
  std::vector<StageOptimizer> optimizers;  // the pipeline's
  checkpoint::RankSlices slices;           // of tensor parallelism
  std::optional<EpochSample> sample;       // of a language model
  std::optional<Prediction> prediction;
  RunPlan plan;

 private:
  void find_last_stage();  // for the ranks, which ask whether they hold it
  // The cut that the run was saved with, if it is for these devices and the recipe has none.
  void take_saved_cut(const RunFolder& resumed);
  std::unique_ptr<Pipeline> cut_pipeline(const nn::Layers& model, const nn::Values& sample) const;
  void open_data(const TrainHooks& hooks, const RunFolder* resumed);
  // Takes the schedule of "auto" into the recipe. All ranks call it; the first one searches.
  void search_schedule(const TrainHooks& hooks, const std::vector<Device>& all_devices);
  void make_pipeline_if_missing(const nn::Layers& model, const std::optional<data::Batch>& first);
  void predict(const std::optional<data::Batch>& first);
  ShardOptions shard_options() const;
  void split_layers();
  void shard_parameters();

  std::vector<int> saved_cut_;
};

}  // namespace trestle::train
