// Measures the time that the loader adds to a recipe's training step. Epochs with the loader
// alternate with the same number of steps on a batch in memory.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trestle/base/stopwatch.h"
#include "trestle/train/training_setup.h"

namespace {

namespace train = trestle::train;

struct Job {
  std::string recipe, images, masks;
  int epochs = 2;
};

std::unique_ptr<train::TrainingSetup> prepare(const Job& job) {
  auto recipe = trestle::recipe::read_recipe(job.recipe);
  if (!job.images.empty()) recipe.data.images = job.images;
  if (!job.masks.empty()) recipe.data.masks = job.masks;
  return std::make_unique<train::TrainingSetup>(recipe, train::TrainHooks{});
}

void measure(const Job& job) {
  const std::unique_ptr<train::TrainingSetup> setup = prepare(job);
  const auto train_on = [&](const trestle::data::Batch& batch) {
    setup->pipeline->step(batch.inputs, batch.targets, setup->task.loss);
  };
  const auto batches = static_cast<double>(setup->task.training->batches());
  const trestle::data::Batch kept = *setup->task.training->epoch(0).next();
  nlohmann::ordered_json report;
  for (int epoch = 0; epoch < 1 + job.epochs; ++epoch) {  // the first epoch warms up
    const trestle::Stopwatch with_loader;
    double waited = 0;
    {
      trestle::data::Epoch reading = setup->task.training->epoch(epoch);
      for (;;) {
        const trestle::Stopwatch wait;
        const auto batch = reading.next();
        waited += wait.seconds();
        if (!batch) break;
        train_on(*batch);
      }
    }
    const double loaded = with_loader.seconds();
    const trestle::Stopwatch in_memory;
    for (int step = 0; step < static_cast<int>(batches); ++step) train_on(kept);
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
