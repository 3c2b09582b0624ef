// Measures a training step of the U-Net with trestle, on one device or cut over several. With
// --predict it also prints the simulator's prediction.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/measured_steps.h"
#include "trestle/base/error.h"
#include "trestle/device/stream_event.h"
#include "trestle/trestle.h"

namespace {

using nlohmann::ordered_json;

struct Plan {
  std::string devices = "virtual:1";
  std::vector<int> balance = {22};  // empty = measured
  int micro_batches = 1;
  std::string schedule = "gpipe";
  std::string recompute = "never";
  bool predict = false;
  bool lend = false;
  bool channels_last = false;
  std::string precision = "fp32";
  int threads = 0;
};

const std::map<std::string, trestle::Recompute> recompute_modes = {
    {"never", trestle::Recompute::Never},
    {"except_last", trestle::Recompute::ExceptLast},
    {"always", trestle::Recompute::Always}};

void add_flags(Plan& plan, CLI::App& app) {
  app.add_option("--devices", plan.devices, "One device per stage");
  auto* const balance = app.add_option("--balance", plan.balance, "Layers of each stage, of 22");
  balance->delimiter(',');
  app.add_flag_callback(
         "--measure-balance", [&plan] { plan.balance.clear(); }, "Cut by measured times")
      ->excludes(balance);
  app.add_option("--micro-batches", plan.micro_batches, "Number of micro-batches");
  app.add_option("--schedule", plan.schedule, "gpipe or 1f1b");
  app.add_option("--recompute", plan.recompute, "never, except_last or always")
      ->check(CLI::IsMember(recompute_modes));
  app.add_flag("--channels-last", plan.channels_last, "Images and weights in that memory format");
  app.add_option("--precision", plan.precision, "fp32, bf16 or fp16, by autocast");
  app.add_flag("--lend", plan.lend, "Let a stage use the cores of idle ones");
  app.add_option("--threads", plan.threads, "Intra-op threads of a stage; 0 = cores / stages");
  app.add_flag("--predict", plan.predict, "Profile the stages first and print the prediction");
}

trestle::Pipeline make_pipeline(const benchmarks::Job& job, const Plan& plan,
                                const at::Tensor& images) {
  trestle::PipelineOptions options;
  options.devices = trestle::parse_devices(plan.devices);
  if (options.devices[0].torch.is_cpu()) trestle::cache_cpu_memory();
  options.balance = plan.balance;
  options.micro_batches = plan.micro_batches;
  options.schedule = plan.schedule;
  options.recompute = recompute_modes.at(plan.recompute);
  options.cores.threads = plan.threads;
  options.numerics.precision = trestle::precision::parse_precision(plan.precision);
  if (plan.channels_last) options.numerics.memory_format = at::MemoryFormat::ChannelsLast;
  if (plan.balance.empty()) options.plan.sample = {images};
  if (plan.lend) options.cores.lending = trestle::CoreLending::On;
  return {trestle::models::unet({.width = job.width}), options};
}

// Dice needs the whole batch. 1F1B does not wait for it, and uses dice per micro-batch.
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

// Like the trainer: profile, add the optimizer's state (RMSprop with momentum: two numbers per
// parameter), simulate.
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

// Mean seconds of each kind of action in the last step, to compare with the profile.
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

// Each rank's computing share of the last step.
std::vector<double> busy_shares(const trestle::schedule::Timeline& timeline) {
  std::vector<double> shares = trestle::schedule::busy(timeline);
  for (double& share : shares) share /= trestle::schedule::makespan(timeline);
  return shares;
}

// On a GPU operators return early: read the clock when all devices have finished.
void synchronize(const trestle::Pipeline& pipeline) {
  for (int stage = 0; stage < pipeline.stage_count(); ++stage)
    trestle::device::synchronize(pipeline.device(stage).torch);
}

// On GPUs the mini-batch is on its device from the start, as in the peers.
void place(const trestle::Pipeline& pipeline, at::Tensor& images, at::Tensor& masks) {
  const at::Device first = pipeline.device(0).torch;
  const at::Device last = pipeline.device(pipeline.stage_count() - 1).torch;
  if (first.is_cuda()) images = images.to(first);
  if (last.is_cuda()) masks = masks.to(last);
}

void measure(const benchmarks::Job& job, const Plan& plan) {
  at::Tensor images = torch::rand({job.batch, 3, job.rows, job.columns});
  at::Tensor masks = torch::randint(2, {job.batch, job.rows, job.columns});
  trestle::Pipeline pipeline = make_pipeline(job, plan, images);
  place(pipeline, images, masks);
  const trestle::nn::Loss loss = loss_for(pipeline);
  const Optimizers optimizers = make_optimizers(pipeline);
  ordered_json report{{"loss", 0.0}};
  if (plan.predict) report["predicted"] = predict(pipeline, images, masks, loss);

  const auto times = benchmarks::run_steps(
      job,
      [&] {
        pipeline.zero_grad();
        report["loss"] = pipeline.step(images, masks, loss).loss;
        synchronize(pipeline);
      },
      [&] {
        for (const auto& optimizer : optimizers) optimizer->step();
        synchronize(pipeline);
      },
      [&] {
        for (int stage = 0; stage < pipeline.stage_count(); ++stage)
          trestle::reset_peak_memory(pipeline.device(stage).torch);
      });
  for (int stage = 0; stage < pipeline.stage_count(); ++stage)
    report["peak_bytes"].push_back(trestle::memory_usage(pipeline.device(stage).torch).peak);
  report["balance"] = pipeline.balance();
  report["busy_shares"] = busy_shares(pipeline.timeline());
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
