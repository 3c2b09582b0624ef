// A training step of the U-Net with trestle: whole on one device or cut over several, and, with
// --predict, what the simulator expected of it.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/measured_steps.h"
#include "trestle/base/error.h"
#include "trestle/trestle.h"

namespace {

using nlohmann::ordered_json;

struct Plan {
  std::string devices = "virtual:1";
  std::vector<int> balance = {22};
  int micro_batches = 1;
  std::string schedule = "gpipe";
  std::string recompute = "never";
  bool predict = false;
};

const std::map<std::string, trestle::Recompute> recompute_modes = {
    {"never", trestle::Recompute::Never},
    {"except_last", trestle::Recompute::ExceptLast},
    {"always", trestle::Recompute::Always}};

void add_flags(Plan& plan, CLI::App& app) {
  app.add_option("--devices", plan.devices, "One for each stage");
  app.add_option("--balance", plan.balance, "Layers of each stage, of 22")->delimiter(',');
  app.add_option("--micro-batches", plan.micro_batches, "Pieces of a mini-batch");
  app.add_option("--schedule", plan.schedule, "gpipe or 1f1b");
  app.add_option("--recompute", plan.recompute, "never, except_last or always")
      ->check(CLI::IsMember(recompute_modes));
  app.add_flag("--predict", plan.predict, "Profile the stages first and say what was expected");
}

trestle::Pipeline make_pipeline(const benchmarks::Job& job, const Plan& plan) {
  trestle::PipelineOptions options;
  options.devices = trestle::parse_devices(plan.devices);
  options.balance = plan.balance;
  options.micro_batches = plan.micro_batches;
  options.schedule = plan.schedule;
  options.recompute = recompute_modes.at(plan.recompute);
  return {trestle::models::unet({.width = job.width}), options};
}

// Dice needs the whole batch, which 1F1B does not wait for: there it is taken of each micro-batch.
trestle::nn::Loss loss_for(const trestle::Pipeline& pipeline) {
  return trestle::schedule::all_forwards_first(pipeline.schedule())
             ? trestle::nn::cross_entropy_and_dice()
             : trestle::nn::cross_entropy_and_dice_per_micro_batch();
}

using Optimizers = std::vector<std::unique_ptr<torch::optim::Optimizer>>;

Optimizers make_optimizers(const trestle::Pipeline& pipeline) {
  Optimizers optimizers;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    optimizers.push_back(trestle::optim::make_optimizer(
        pipeline.stage_parameters(stage),
        {.name = "rmsprop", .learning_rate = 1e-5, .weight_decay = 1e-8, .momentum = 0.9}));
  }
  return optimizers;
}

// As the trainer does it: profile, add what the optimizer will remember (RMSprop with momentum: two
// numbers for each parameter), simulate.
ordered_json predict(trestle::Pipeline& pipeline, const at::Tensor& images, const at::Tensor& masks,
                     const trestle::nn::Loss& loss) {
  trestle::simulate::Costs costs = pipeline.profile({images}, masks, loss);
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    for (const auto& parameter : pipeline.stage_parameters(stage))
      costs.stages[stage].persistent += 2 * static_cast<trestle::Bytes>(parameter.nbytes());
  }
  const auto timeline = pipeline.predict(costs);
  ordered_json stages = ordered_json::array();
  for (const auto& cost : costs.stages) {
    stages.push_back({{"forward", cost.forward},
                      {"forward_no_graph", cost.forward_no_graph},
                      {"backward", cost.backward},
                      {"persistent", cost.persistent},
                      {"saved", cost.saved},
                      {"transient_forward", cost.transient_forward},
                      {"transient_backward", cost.transient_backward}});
  }
  return {{"seconds", trestle::schedule::makespan(timeline)},
          {"peak_bytes", timeline.peak_bytes},
          {"stages", stages}};
}

// Mean seconds that each kind of action took in the last step, to be held against the profile's.
ordered_json action_means(const trestle::schedule::Timeline& timeline) {
  std::map<std::string, std::pair<double, int>> sums;
  for (const auto& event : timeline.events) {
    if (!trestle::schedule::is_compute(event.action.kind)) continue;
    const std::string word = trestle::schedule::to_string(event.action);
    auto& [seconds, number] = sums[word.substr(0, word.find_last_not_of("0123456789") + 1)];
    seconds += event.end - event.begin;
    ++number;
  }
  ordered_json means;
  for (const auto& [word, sum] : sums) means[word] = sum.first / sum.second;
  return means;
}

void measure(const benchmarks::Job& job, const Plan& plan) {
  trestle::Pipeline pipeline = make_pipeline(job, plan);
  const trestle::nn::Loss loss = loss_for(pipeline);
  const at::Tensor images = torch::rand({job.batch, 3, job.rows, job.columns});
  const at::Tensor masks = torch::randint(2, {job.batch, job.rows, job.columns});
  const Optimizers optimizers = make_optimizers(pipeline);
  ordered_json report{{"loss", 0.0}};
  if (plan.predict) report["predicted"] = predict(pipeline, images, masks, loss);

  const auto times = benchmarks::run_steps(
      job,
      [&] {
        pipeline.zero_grad();
        report["loss"] = pipeline.step(images, masks, loss).loss;
      },
      [&] {
        for (const auto& optimizer : optimizers) optimizer->step();
      },
      [&] {
        for (int stage = 0; stage < pipeline.stage_count(); ++stage)
          trestle::reset_peak_memory(pipeline.device(stage).torch);
      });
  for (int stage = 0; stage < pipeline.stage_count(); ++stage)
    report["peak_bytes"].push_back(trestle::memory_usage(pipeline.device(stage).torch).peak);
  report["action_seconds"] = action_means(pipeline.timeline());
  benchmarks::print(report, times);
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("A training step of the U-Net with trestle.");
  benchmarks::Job job;
  Plan plan;
  benchmarks::add_flags(job, app);
  add_flags(plan, app);
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job, plan);
  } catch (const std::exception& error) {
    std::cerr << "unet_step: " << error.what() << "\n";
    return dynamic_cast<const trestle::UsageError*>(&error) ? 2 : 1;
  }
}
