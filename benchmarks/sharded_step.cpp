// Measures training steps of a model whose ranks share the batch, at each level, on thread ranks or
// on processes; the share of communication that a backward hides; an optimizer's step over flat
// shards. `trestle launch` starts the processes.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/sharded.h"

namespace {

using namespace trestle;

struct Arguments {
  std::string what = "steps";  // steps, apart, overlap, optimizer
  std::string model = "mlp";   // mlp, conv
  std::string level = "none";
  std::string on = "processes";  // threads, processes
  int ranks = 2;
  int steps = 5;
  int width = 1024;  // of the mlp; the convolutions have 1/16 of it
  int layers = 16;   // of the mlp
  int batch = 128;   // per rank
  bool keeps_pages = false;
};

const std::map<std::string, ShardLevel> levels = {{"none", ShardLevel::None},
                                                  {"optimizer-state", ShardLevel::OptimizerState},
                                                  {"gradients", ShardLevel::Gradients},
                                                  {"parameters", ShardLevel::Parameters}};

nn::Layers mlp(const Arguments& arguments) {
  nn::Layers net(nn::Seed{1});
  for (int i = 0; i < arguments.layers; ++i)
    net.add("layer" + std::to_string(i), [width = arguments.width] {
      return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU());
    });
  return net;
}

// Four convolutions, from 32 x 32 to 4 x 4, and two linear layers.
nn::Layers convolutions(const Arguments& arguments) {
  nn::Layers net(nn::Seed{1});
  int channels = 3;
  for (int i = 0; i < 4; ++i) {
    const int more = (arguments.width / 16) << i;
    net.add("conv" + std::to_string(i), [channels, more, i] {
      const auto options = torch::nn::Conv2dOptions(channels, more, 3).padding(1).stride(i ? 2 : 1);
      return torch::nn::Sequential(torch::nn::Conv2d(options), torch::nn::ReLU());
    });
    channels = more;
  }
  net.add("flat", torch::nn::Flatten());
  net.add("hidden", [channels] {
    return torch::nn::Sequential(torch::nn::Linear(16 * channels, 512), torch::nn::ReLU());
  });
  net.add("out", [] { return torch::nn::Linear(512, 10); });
  return net;
}

struct Job {
  nn::Layers net;
  at::Tensor input, target;
};

Job make_job(const Arguments& arguments) {
  if (arguments.model == "mlp")
    return {mlp(arguments), torch::randn({arguments.batch, arguments.width}),
            torch::randn({arguments.batch, arguments.width})};
  return {convolutions(arguments), torch::randn({arguments.batch, 3, 32, 32}),
          torch::randn({arguments.batch, 10})};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

// Seconds of each step after the first two, which create buckets and the optimizer's state.
nlohmann::json time_steps(const Arguments& arguments, const World& world) {
  const DeviceMesh mesh(world, {{"shard", world.size()}});
  const Job job = make_job(arguments);
  Sharded sharded(job.net, mesh, {.level = levels.at(arguments.level)});
  const auto optimizer =
      optim::make_optimizer(sharded.parameters(), {.name = "adamw", .learning_rate = 1e-4});
  std::vector<double> gradients, updates, waits;
  for (int step = -2; step < arguments.steps; ++step) {
    world.group().barrier();
    const Stopwatch watch;
    optimizer->zero_grad();
    sharded.backward(torch::mse_loss(sharded.forward(job.input), job.target));
    const double gradient = watch.seconds();
    optimizer->step();
    world.group().barrier();
    const double all = watch.seconds();
    if (step < 0) continue;
    gradients.push_back(gradient);
    updates.push_back(all - gradient);
    waits.push_back(sharded.report().waited_seconds);
  }
  return {{"gradients_seconds", gradients},
          {"optimizer_seconds", updates},
          {"waited_seconds", waits},
          {"description", sharded.description()}};
}

// The first elements of each parameter and of its gradient: the size of a rank's shard.
std::vector<at::Tensor> shards_of(const std::vector<at::Tensor>& parameters, int ranks) {
  std::vector<at::Tensor> shards;
  for (const at::Tensor& parameter : parameters) {
    const std::int64_t count = (parameter.numel() + ranks - 1) / ranks;
    at::Tensor shard = parameter.detach().view(-1).narrow(0, 0, count);
    shard.mutable_grad() = parameter.grad().view(-1).narrow(0, 0, count);
    shards.push_back(shard);
  }
  return shards;
}

// Steps of ranks that compute at the same time and do not communicate: a lower bound of a step's
// time. Each computes the gradients of its own batch, and its share of the optimizer's step.
nlohmann::json time_steps_apart(const Arguments& arguments, const World& world) {
  const DeviceMesh mesh(world, {{"replicate", world.size()}});
  const Job job = make_job(arguments);
  Sharded sharded(job.net, mesh);
  const auto gradients = [&] {
    const auto no_sync = sharded.no_sync();
    for (const at::Tensor& parameter : sharded.parameters()) parameter.grad().zero_();
    sharded.backward(torch::mse_loss(sharded.forward(job.input), job.target));
  };
  for (const at::Tensor& parameter : sharded.parameters())
    at::Tensor(parameter).mutable_grad() = at::zeros_like(parameter);
  const int shares = arguments.level == "none" ? 1 : world.size();
  const auto optimizer = optim::make_optimizer(shards_of(sharded.parameters(), shares),
                                               {.name = "adamw", .learning_rate = 1e-4});
  std::vector<double> times, updates;
  for (int step = -2; step < arguments.steps; ++step) {
    world.group().barrier();
    const Stopwatch watch;
    gradients();
    const double gradient = watch.seconds();
    optimizer->step();
    world.group().barrier();
    if (step < 0) continue;
    times.push_back(gradient);
    updates.push_back(watch.seconds() - gradient);
  }
  return {{"gradients_seconds", times}, {"optimizer_seconds", updates}};
}

// Alternates a forward and backward with and without reduction, and the reductions alone.
nlohmann::json overlap(const Arguments& arguments, const World& world) {
  const DeviceMesh mesh(world, {{"replicate", world.size()}});
  const Job job = make_job(arguments);
  Sharded sharded(job.net, mesh);
  const comm::Group group = world.group().with_check(comm::Check::Off);
  const auto timed = [&](const auto& function) {
    world.group().barrier();
    const Stopwatch watch;
    function();
    world.group().barrier();
    return watch.seconds();
  };
  const auto gradients = [&] {
    sharded.zero_grad();
    sharded.backward(torch::mse_loss(sharded.forward(job.input), job.target));
  };
  std::int64_t left = 0;
  for (const at::Tensor& parameter : sharded.parameters()) left += parameter.numel();
  std::vector<at::Tensor> buckets;
  for (std::int64_t size = 1 << 18; left > 0; size = 25 << 18) {
    buckets.push_back(torch::zeros({std::min(size, left)}));
    left -= buckets.back().numel();
  }
  std::vector<double> with, without, alone;
  for (int step = -2; step < arguments.steps; ++step) {
    const double one = timed(gradients);
    const double two = timed([&] {
      const auto no_sync = sharded.no_sync();
      gradients();
    });
    const double three = timed([&] {
      std::vector<comm::Work> works;
      for (const at::Tensor& bucket : buckets) works.push_back(group.all_reduce(bucket));
      for (comm::Work& work : works) work.wait();
    });
    if (step >= 0) with.push_back(one), without.push_back(two), alone.push_back(three);
  }
  return {{"with_seconds", with}, {"without_seconds", without}, {"alone_seconds", alone}};
}

std::unique_ptr<torch::optim::Optimizer> plain_optimizer(const std::string& name,
                                                         const std::vector<at::Tensor>& shards) {
  if (name == "adamw")
    return std::make_unique<torch::optim::AdamW>(shards, torch::optim::AdamWOptions(1e-6));
  if (name == "rmsprop")
    return std::make_unique<torch::optim::RMSprop>(
        shards, torch::optim::RMSpropOptions(1e-6).momentum(0.9));
  return std::make_unique<torch::optim::SGD>(shards, torch::optim::SGDOptions(1e-6).momentum(0.9));
}

// Alternates our optimizer and torch::optim's over the same flat shards.
nlohmann::json optimizers(const Arguments& arguments, const World& world) {
  const DeviceMesh mesh(world, {{"shard", world.size()}});
  const Job job = make_job(arguments);
  Sharded sharded(job.net, mesh, {.level = ShardLevel::Gradients});
  const auto shards = sharded.parameters();
  sharded.backward(torch::mse_loss(sharded.forward(job.input), job.target));
  nlohmann::json report;
  for (const std::string name : {"adamw", "rmsprop", "sgd"}) {
    optim::OptimizerOptions options{.name = name, .learning_rate = 1e-6};
    if (name != "adamw") options.momentum = 0.9;
    if (name == "adamw") options.weight_decay = 1e-2;  // the default of torch::optim
    const auto ours = optim::make_optimizer(shards, options);
    const auto theirs = plain_optimizer(name, shards);
    std::vector<double> one, two;
    for (int step = -2; step < arguments.steps; ++step) {
      Stopwatch watch;
      ours->step();
      const double mine = watch.seconds();
      watch = Stopwatch();
      theirs->step();
      if (step >= 0) one.push_back(mine), two.push_back(watch.seconds());
    }
    report[name] = {{"ours", median(one)}, {"theirs", median(two)}};
  }
  return report;
}

nlohmann::json perform(const Arguments& arguments, const World& world) {
  if (arguments.what == "apart") return time_steps_apart(arguments, world);
  if (arguments.what == "overlap") return overlap(arguments, world);
  if (arguments.what == "optimizer") return optimizers(arguments, world);
  return time_steps(arguments, world);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Times steps of a model whose ranks share the batch.");
  app.add_option("--what", arguments.what, "The measurement")
      ->check(CLI::IsMember({"steps", "apart", "overlap", "optimizer"}));
  app.add_option("--model", arguments.model, "The model")->check(CLI::IsMember({"mlp", "conv"}));
  app.add_option("--level", arguments.level, "The level of sharding")->check(CLI::IsMember(levels));
  app.add_option("--on", arguments.on, "The kind of ranks")
      ->check(CLI::IsMember({"threads", "processes"}));
  app.add_option("--ranks", arguments.ranks, "Number of thread ranks");
  app.add_option("--steps", arguments.steps, "Measured steps")->check(CLI::PositiveNumber);
  app.add_option("--width", arguments.width, "Features of the mlp");
  app.add_option("--layers", arguments.layers, "Layers of the mlp");
  app.add_option("--batch", arguments.batch, "Samples per rank");
  app.add_flag("--keep-pages", arguments.keeps_pages, "Call cache_cpu_memory() first");
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.keeps_pages) cache_cpu_memory();
    nlohmann::json report;
    bool tells = true;
    if (arguments.on == "threads") {
      const int threads = arguments.what == "optimizer" ? 0 : 1;
      report = spawn(arguments.ranks, [&](World& world) { return perform(arguments, world); },
                     {.threads = threads})[0];
    } else {
      torch::set_num_threads(1);
      const World world = init();
      report = perform(arguments, world);
      tells = world.rank() == 0;
    }
    if (tells) std::cout << report.dump() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "sharded_step: " << error.what() << std::endl;
    return 1;
  }
}
