// Measures the time that the loader adds to a recipe's training step. Epochs with the loader
// alternate with the same number of steps on a batch in memory.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trestle/base/stopwatch.h"
#include "trestle/train/setup.h"

namespace {

namespace train = trestle::train;

struct Job {
  std::string recipe, images, masks;
  int epochs = 2;
};

struct Trained {
  trestle::recipe::Recipe recipe;
  train::Task task;
  std::unique_ptr<trestle::Pipeline> pipeline;
  std::vector<train::StageOptimizer> optimizers;

  void step(const trestle::data::Batch& batch) {
    pipeline->step(batch.inputs, batch.targets, task.loss);
    for (train::StageOptimizer& stage : optimizers) stage.optimizer->step();
    pipeline->zero_grad();
  }
};

Trained prepare(const Job& job) {
  Trained trained;
  trained.recipe = trestle::recipe::read_recipe(job.recipe);
  if (!job.images.empty()) trained.recipe.data.images = job.images;
  if (!job.masks.empty()) trained.recipe.data.masks = job.masks;
  const auto devices = train::open_devices(trained.recipe);
  const auto silent =
      train::make_progress(train::ProgressStyle::Silent, train::Colours::Off, std::cout);
  trained.task = train::make_task(trained.recipe, *silent);
  trained.pipeline =
      train::make_pipeline(trained.recipe, train::make_model(trained.recipe, {}), devices,
                           {trained.task.training->epoch(0).next()->inputs});
  trained.optimizers = train::make_optimizers(trained.recipe, *trained.pipeline);
  return trained;
}

void measure(const Job& job) {
  Trained trained = prepare(job);
  const auto batches = static_cast<double>(trained.task.training->batches());
  const trestle::data::Batch kept = *trained.task.training->epoch(0).next();
  nlohmann::ordered_json report;
  for (int epoch = 0; epoch < 1 + job.epochs; ++epoch) {  // the first epoch warms up
    const trestle::Stopwatch with_loader;
    double waited = 0;
    {
      trestle::data::Epoch reading = trained.task.training->epoch(epoch);
      for (;;) {
        const trestle::Stopwatch wait;
        const auto batch = reading.next();
        waited += wait.seconds();
        if (!batch) break;
        trained.step(*batch);
      }
    }
    const double loaded = with_loader.seconds();
    const trestle::Stopwatch in_memory;
    for (int step = 0; step < static_cast<int>(batches); ++step) trained.step(kept);
    if (epoch == 0) continue;
    report["in_memory_seconds"].push_back(in_memory.seconds() / batches);
    report["loaded_seconds"].push_back(loaded / batches);
    report["waited_seconds"].push_back(waited / batches);
  }
  std::cout << report.dump() << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("Measures the time that the loader adds to a recipe's training step.");
  Job job;
  app.add_option("--recipe", job.recipe, "A recipe with two folders of data")->required();
  app.add_option("--images", job.images, "Instead of the recipe's folder");
  app.add_option("--masks", job.masks, "Instead of the recipe's folder");
  app.add_option("--epochs", job.epochs, "Number of measured epochs")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job);
  } catch (const std::exception& error) {
    std::cerr << "loader_share: " << error.what() << "\n";
    return 1;
  }
}
