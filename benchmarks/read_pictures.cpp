// Measures how fast the data set and the loader of recipes/unet_carvana.toml read Carvana's
// pictures and masks into batches. No training runs.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "trestle/base/stopwatch.h"
#include "trestle/data/loader.h"
#include "trestle/data/segmentation.h"
#include "trestle/device/cpu_cache.h"

namespace {

namespace data = trestle::data;

struct Job {
  std::string images, masks;
  double scale = 0.5;
  int batch = 16;
  int workers = 1;
  int epochs = 3;
};

void measure(const Job& job) {
  trestle::cache_cpu_memory();  // like `trestle train`
  const auto cars = std::make_shared<data::SegmentationDataset>(
      job.images, job.masks,
      data::SegmentationOptions{.picture = {.scale = job.scale},
                                .mask_suffix = data::carvana_suffix});
  const data::Loader loader(
      cars, {.batch = job.batch, .order = data::Order::Shuffled, .workers = job.workers});
  nlohmann::ordered_json report{{"examples", loader.examples()}};
  double input_sum = 0, target_sum = 0;
  for (int epoch = 0; epoch < 1 + job.epochs; ++epoch) {  // the first epoch caches the files
    const trestle::Stopwatch watch;
    data::Epoch batches = loader.epoch(epoch);
    for (const data::Batch& batch : batches) {
      if (epoch > 0) continue;
      input_sum += batch.inputs.sum(torch::kDouble).item<double>();
      target_sum += batch.targets.sum(torch::kDouble).item<double>();
    }
    if (epoch > 0) report["seconds"].push_back(watch.seconds());
  }
  report["input_sum"] = input_sum;
  report["target_sum"] = target_sum;
  std::cout << report.dump() << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("Measures how fast Carvana's pictures and masks are read into batches.");
  Job job;
  app.add_option("--images", job.images, "The folder of pictures")->required();
  app.add_option("--masks", job.masks, "The folder of masks")->required();
  app.add_option("--scale", job.scale, "Scale of both, as in a recipe");
  app.add_option("--batch", job.batch, "Pictures per batch");
  app.add_option("--workers", job.workers, "Reader threads");
  app.add_option("--epochs", job.epochs, "Number of measured epochs")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job);
  } catch (const std::exception& error) {
    std::cerr << "read_pictures: " << error.what() << "\n";
    return 1;
  }
}
