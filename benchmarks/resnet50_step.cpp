// Measures a forward and a training step of ResNet-50 with trestle. It uses random images, one-hot
// targets, mean squared error and SGD, as in PyTorch's tutorial on model parallelism.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/measured_steps.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/trestle.h"

namespace {

struct Plan {
  std::string device = "virtual:1";
  bool channels_last = false;
};

trestle::Pipeline make_pipeline(const benchmarks::Job& job, const Plan& plan) {
  trestle::PipelineOptions options;
  options.devices = trestle::parse_devices(plan.device);
  if (options.devices[0].torch.is_cpu()) trestle::cache_cpu_memory();
  options.balance = {22};
  if (plan.channels_last) options.numerics.memory_format = at::MemoryFormat::ChannelsLast;
  return {trestle::models::resnet50({.width = job.width}), options};
}

std::vector<double> forward_seconds(const benchmarks::Job& job, trestle::Pipeline& pipeline,
                                    const at::Tensor& images) {
  std::vector<double> seconds;
  for (int number = 0; number < job.warm_up + job.steps; ++number) {
    const trestle::Stopwatch watch;
    pipeline.evaluate(images);
    if (number >= job.warm_up) seconds.push_back(watch.seconds());
  }
  return seconds;
}

void measure(const benchmarks::Job& job, const Plan& plan) {
  trestle::Pipeline pipeline = make_pipeline(job, plan);
  const at::Tensor images = torch::randn({job.batch, 3, job.rows, job.columns});
  const at::Tensor targets =
      torch::one_hot(torch::randint(1000, {job.batch}), 1000).to(torch::kFloat);
  const trestle::nn::Loss loss = trestle::nn::mean_squared_error();
  const auto optimizer =
      trestle::optim::make_optimizer(pipeline.parameters(), {.name = "sgd", .learning_rate = 1e-3});
  nlohmann::ordered_json report{{"loss", 0.0}};
  report["forward_seconds"] = forward_seconds(job, pipeline, images);
  const auto times = benchmarks::run_steps(
      job,
      [&] {
        pipeline.zero_grad();
        report["loss"] = pipeline.step(images, targets, loss).loss;
      },
      [&] { optimizer->step(); });
  benchmarks::print(report, times);
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("A forward and a training step of ResNet-50 with trestle.");
  benchmarks::Job job{.rows = 128, .columns = 128};
  Plan plan;
  benchmarks::add_flags(job, app);
  app.add_option("--device", plan.device, "cpu or virtual:1");
  app.add_flag("--channels-last", plan.channels_last, "Images and weights in that memory format");
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job, plan);
  } catch (const std::exception& error) {
    std::cerr << "resnet50_step: " << error.what() << "\n";
    return dynamic_cast<const trestle::UsageError*>(&error) ? 2 : 1;
  }
}
