// Measures training steps of a pipeline in one process, on thread ranks or on processes; the
// duration of a message; the idle share of sixteen ranks. `trestle launch` starts the processes.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/process_usage.h"
#include "benchmarks/sleeping_net.h"
#include "trestle/base/stopwatch.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/models/unet.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/plan/balance.h"
#include "trestle/schedule/generate.h"
#include "trestle/simulate/simulate.h"

namespace {

using namespace trestle;

struct Arguments {
  std::string what = "mlp";         // mlp, unet, messages, idle
  std::string ranks = "processes";  // local, threads, processes
  int count = 2;
  std::string schedule = "gpipe";
  int micro_batches = 8;
  int steps = 5;
  int width = 1024;  // of the mlp; the unet has 1/64 of it
  int layers = 16;
  int batch = 256;
  bool keeps_pages = false;
};

nn::Layers mlp(const Arguments& arguments) {
  nn::Layers net(nn::Seed{1});
  const int width = arguments.width;
  for (int i = 0; i < arguments.layers; ++i)
    net.add("layer" + std::to_string(i), [width] {
      return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU());
    });
  return net;
}

using benchmarks::ProcessUsage;

// The sum over all ranks' processes. Ranks that are threads share one process.
ProcessUsage sum_over_ranks(const ProcessUsage& own, const Arguments& arguments,
                            const World* world) {
  if (world == nullptr || arguments.ranks == "threads") return own;
  const at::Tensor sum = torch::tensor(own.values(), at::kDouble);
  world->group().all_reduce(sum).wait();
  return ProcessUsage::from(sum.data_ptr<double>());
}

// Seconds of each step after the first, and what all ranks used for it; prints a line at the end of
// the first.
nlohmann::json time_steps(Pipeline& pipeline, const Arguments& arguments, bool first, bool last,
                          const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                          const World* world) {
  const auto meet = [&] {
    if (world != nullptr) world->group().barrier();
  };
  torch::optim::SGD optimizer(pipeline.parameters(), 0.01);
  std::vector<double> times;
  ProcessUsage before;
  for (int step = 0; step <= arguments.steps; ++step) {
    meet();
    const Stopwatch watch;
    optimizer.zero_grad();
    pipeline.step(first ? input : at::Tensor(), last ? target : at::Tensor(), loss);
    optimizer.step();
    meet();
    if (step > 0) times.push_back(watch.seconds());
    if (step > 0) continue;
    if (first) std::cout << "first step" << std::endl;
    before = ProcessUsage::now();
  }
  const auto used = sum_over_ranks(ProcessUsage::now() - before, arguments, world);
  return {{"step_seconds", times}, {"per_step", benchmarks::per_step(used, arguments.steps)}};
}

nlohmann::json train(const Arguments& arguments, const World* world) {
  const int stages = arguments.count * schedule::stages_per_rank(arguments.schedule, 0);
  const int last_rank =
      schedule::ranks_of_stages(arguments.schedule, stages, stages / arguments.count).back();
  const bool first = world == nullptr || world->rank() == 0;
  const bool last = world == nullptr || world->rank() == last_rank;
  const bool unet = arguments.what == "unet";
  const nn::Layers net = unet ? models::unet({.width = arguments.width / 64}) : mlp(arguments);
  PipelineOptions options{.balance = plan::balance(std::vector<double>(net.size(), 1.0), stages),
                          .micro_batches = arguments.micro_batches,
                          .schedule = arguments.schedule};
  if (world != nullptr) options.group = world->group();
  Pipeline pipeline(net, options);
  at::Tensor input, target;
  if (unet) {
    if (first) input = torch::randn({arguments.batch, 3, 96, 144});
    if (last) target = torch::randint(2, {arguments.batch, 96, 144});
  } else {
    if (first) input = torch::randn({arguments.batch, arguments.width});
    if (last) target = torch::randn({arguments.batch, arguments.width});
  }
  return time_steps(pipeline, arguments, first, last, input, target,
                    unet ? nn::cross_entropy() : nn::mean_squared_error(), world);
}

// Compares empty stages that pass on 1 KiB with plain sends and receives of c10d, there and back.
nlohmann::json messages(const Arguments& arguments, const World& world) {
  constexpr int there_and_back = 200;
  const comm::Group bare = world.group().with_check(comm::Check::Off);
  at::Tensor block = torch::ones({256});
  std::vector<double> ours, theirs;
  nn::Layers net;
  for (int i = 0; i < world.size(); ++i)
    net.add("stage" + std::to_string(i), [](at::Tensor x) { return x; });
  Pipeline pipeline(net, {.group = world.group(),
                          .balance = std::vector<int>(static_cast<std::size_t>(world.size()), 1),
                          .micro_batches = there_and_back});
  const at::Tensor batch = torch::ones({there_and_back, 256});
  for (int round = 0; round <= arguments.steps; ++round) {
    world.group().barrier();
    Stopwatch watch;
    for (int i = 0; i < there_and_back; ++i) {
      if (world.rank() == 0) {
        bare.send(block, 1, 5).wait();
        bare.receive(block, 1, 5).wait();
      } else {
        bare.receive(block, 0, 5).wait();
        bare.send(block, 0, 5).wait();
      }
    }
    const double pings = watch.seconds() / (2 * there_and_back);
    world.group().barrier();
    watch = Stopwatch();
    pipeline.evaluate(world.rank() == 0 ? batch : at::Tensor());
    world.group().barrier();
    const double passed = watch.seconds() / there_and_back;
    if (round > 0) theirs.push_back(pings), ours.push_back(passed);
  }
  return {{"message_seconds", ours}, {"bare_seconds", theirs}};
}

// Ranks whose stages sleep for a known time: compares their idle share with the simulator's.
nlohmann::json idle(const Arguments& arguments, const World& world) {
  const benchmarks::SleepingCosts costs{.call = 0.004, .sample = 0};
  const int stages = world.size();
  Pipeline pipeline(benchmarks::sleeping_net(stages, 8, costs),
                    {.group = world.group(),
                     .balance = std::vector<int>(static_cast<std::size_t>(stages), 1),
                     .micro_batches = arguments.micro_batches,
                     .schedule = arguments.schedule});
  const bool first = world.rank() == 0, last = world.rank() + 1 == stages;
  const at::Tensor batch = torch::ones({arguments.micro_batches, 8});
  std::vector<double> measured;
  for (int step = 0; step <= arguments.steps; ++step) {
    pipeline.step(first ? batch : at::Tensor(), last ? batch : at::Tensor(),
                  nn::mean_squared_error());
    const auto timeline = pipeline.gather_timeline();
    if (step > 0) measured.push_back(schedule::idle_share_of_makespan(timeline));
  }
  simulate::Costs on_paper;
  on_paper.stages.assign(static_cast<std::size_t>(stages), {});
  for (auto& stage : on_paper.stages) stage.forward = costs.call, stage.backward = 2 * costs.call;
  on_paper.routes.resize(pipeline.schedule().routes.size());
  const auto expected = simulate::simulate(pipeline.schedule(), on_paper);
  return {{"idle", measured}, {"simulated_idle", schedule::idle_share_of_makespan(expected)}};
}

nlohmann::json perform(const Arguments& arguments, const World* world) {
  if (arguments.what == "messages") return messages(arguments, *world);
  if (arguments.what == "idle") return idle(arguments, *world);
  return train(arguments, world);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Times steps of pipelines over ranks.");
  app.add_option("--what", arguments.what, "mlp, unet, messages or idle");
  app.add_option("--on", arguments.ranks, "local, threads or processes");
  app.add_option("--ranks", arguments.count, "Number of ranks");
  app.add_option("--schedule", arguments.schedule, "A schedule's name");
  app.add_option("--micro-batches", arguments.micro_batches, "Number of micro-batches");
  app.add_option("--steps", arguments.steps, "Measured steps");
  app.add_option("--width", arguments.width, "Features of the mlp");
  app.add_option("--layers", arguments.layers, "Layers of the mlp");
  app.add_option("--batch", arguments.batch, "Samples per batch");
  app.add_flag("--keep-pages", arguments.keeps_pages, "Call cache_cpu_memory() first");
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.keeps_pages) cache_cpu_memory();
    nlohmann::json report;
    bool tells = true;
    if (arguments.ranks == "local") {
      torch::set_num_threads(1);
      report = perform(arguments, nullptr);
    } else if (arguments.ranks == "threads") {
      report = spawn(arguments.count, [&](World& world) { return perform(arguments, &world); },
                     {.threads = 1})[0];
    } else {
      torch::set_num_threads(1);
      const World world = init();
      report = perform(arguments, &world);
      tells = world.rank() == 0;
    }
    if (tells) std::cout << report.dump() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "ranks_step: " << error.what() << std::endl;
    return 1;
  }
}
