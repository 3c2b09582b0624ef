// Finds the largest U-Net that 1, 2, 4 and 8 virtual devices of equal size can train, with full
// recomputation. It shows how much model size each additional device adds.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "benchmarks/deep_unet.h"
#include "trestle/base/stopwatch.h"
#include "trestle/trestle.h"

namespace {

using nlohmann::ordered_json;
using trestle::Bytes;

struct Job {
  std::string grow = "width";
  std::vector<int> devices = {1, 2, 4, 8};
  Bytes budget = 512 * 1024 * 1024;
  int channels = 32;  // of the first level, for --grow depth
  int batch = 8;      // also the number of micro-batches
  int rows = 64;
  int columns = 96;
};

trestle::nn::Layers make_net(const Job& job, int size) {
  return job.grow == "width" ? trestle::models::unet({.width = size})
                             : benchmarks::deep_unet(job.channels, size);
}

// The largest net that fits.
struct Fit {
  int size = 0;  // its width, or its number of blocks
  std::int64_t parameters = 0;
  std::vector<int> balance;
  std::vector<Bytes> peak_bytes;
};

constexpr trestle::plan::SizeOptions sizes(int micro_batches) {
  return {.optimizer_states = 0,
          .micro_batches = micro_batches,
          .recompute = trestle::Recompute::Always};
}

// The cut of the net of this size, and the memory of its largest stage: at least parameters and
// gradients, and by the profile with everything else.
struct Cut {
  std::vector<int> balance;
  Bytes at_least = 0;
  Bytes expected = 0;
};

Cut cut_by_size(const trestle::nn::Layers& net, const Job& job, int devices) {
  const auto profile = trestle::profile_layers(net, {torch::rand({1, 3, job.rows, job.columns})},
                                               at::Device("virtual:0"));
  Cut cut{.balance = trestle::plan::balance_by_size(profile, devices, sizes(job.batch))};
  int first = 0;
  for (const int layers : cut.balance) {
    Bytes held = 0;
    for (int i = first; i < first + layers; ++i) held += 2 * profile.layers[i].parameters;
    cut.at_least = std::max(cut.at_least, held);
    cut.expected = std::max(
        cut.expected, trestle::plan::stage_bytes(profile, first, first + layers, sizes(job.batch)));
    first += layers;
  }
  return cut;
}

// Trains a new net for two steps. Returns nothing if a device runs out of memory.
std::optional<Fit> attempt(const Job& job, int devices, int size) {
  const trestle::Stopwatch watch;
  const auto say = [&](const char* what) {
    std::fprintf(stderr, "  %d device%s, %s %d: %s (%.1f s)\n", devices, devices == 1 ? "" : "s",
                 job.grow.c_str(), size, what, watch.seconds());
  };
  try {
    trestle::nn::Layers net = make_net(job, size);
    trestle::virtual_devices(devices);  // the profile needs no budget
    const Cut cut = cut_by_size(net, job, devices);
    if (cut.at_least > job.budget) {
      say("parameters and gradients alone do not fit");
      return {};
    }
    trestle::PipelineOptions options;
    options.devices = trestle::virtual_devices(devices, job.budget);
    options.balance = cut.balance;
    options.micro_batches = job.batch;
    options.recompute = trestle::Recompute::Always;
    trestle::Pipeline pipeline(net, options);
    torch::optim::SGD optimizer(pipeline.parameters(), 1e-3);
    const auto images = torch::rand({job.batch, 3, job.rows, job.columns});
    const auto masks = torch::randint(2, {job.batch, job.rows, job.columns});
    for (int i = 0; i < devices; ++i) trestle::reset_peak_memory(pipeline.device(i).torch);
    for (int step = 0; step < 2; ++step) {
      pipeline.zero_grad();
      pipeline.step(images, masks, trestle::nn::cross_entropy());
      optimizer.step();
    }
    Fit fit{.size = size,
            .parameters = net.parameter_count(),
            .balance = cut.balance,
            .peak_bytes = {}};
    for (int i = 0; i < devices; ++i)
      fit.peak_bytes.push_back(trestle::memory_usage(pipeline.device(i).torch).peak);
    say("trains");
    return fit;
  } catch (const c10::OutOfMemoryError&) {
    say("out of memory");
    return {};
  }
}

// Estimates the size that uses the whole budget, from the profile of a small net. Parameters, and
// so nearly all bytes, grow with the square of the width or with the number of blocks. A second
// profile near the estimated size corrects the remaining error.
int guess(const Job& job, int devices) {
  const bool width = job.grow == "width";
  int size = width ? 32 : devices;
  trestle::virtual_devices(devices);
  for (int look = 0; look < 2; ++look) {
    const Cut cut = cut_by_size(make_net(job, size), job, devices);
    const double room = static_cast<double>(job.budget) / static_cast<double>(cut.expected);
    size = std::max(1, static_cast<int>(size * (width ? std::sqrt(room) : room)));
  }
  return size;
}

// Doubles the step from the estimate until one size fits and a larger one does not, then bisects.
Fit largest(const Job& job, int devices) {
  const int start = guess(job, devices);
  std::optional<Fit> best = attempt(job, devices, start);
  int fits = best ? start : 0;
  int fails = best ? 0 : start;  // 0 = none known yet
  for (int stride = 1; best && fails == 0; stride *= 2) {
    const int size = fits + stride;
    if (auto fit = attempt(job, devices, size)) {
      best = std::move(fit);
      fits = size;
    } else {
      fails = size;
    }
  }
  for (int stride = 1; fits == 0 && fails > 1; stride *= 2) {
    const int size = std::max(1, fails - stride);
    best = attempt(job, devices, size);
    (best ? fits : fails) = size;
  }
  while (best && fails - fits > 1) {
    const int size = std::midpoint(fits, fails);
    auto fit = attempt(job, devices, size);
    (fit ? fits : fails) = size;
    if (fit) best = std::move(fit);
  }
  if (!best)
    throw trestle::UsageError("the smallest net does not fit on this number of devices",
                              {.hint = "Set a larger --budget, or more --devices."});
  return *best;
}

template <class Number>
std::string joined(const std::vector<Number>& numbers) {
  std::ostringstream text;
  for (const auto& number : numbers) text << (&number == &numbers[0] ? "" : " ") << number;
  return text.str();
}

void print_row(const ordered_json& row, const Fit& fit) {
  std::vector<Bytes> peaks;
  for (const Bytes bytes : fit.peak_bytes) peaks.push_back(bytes >> 20);
  std::printf("| %d | %d | %.1f | %.2f | %.2f | %s | %s |\n", row["devices"].get<int>(), fit.size,
              static_cast<double>(fit.parameters) / 1e6, row["against_one"].get<double>(),
              row["share_of_ideal"].get<double>(), joined(peaks).c_str(),
              joined(fit.balance).c_str());
  std::fflush(stdout);
}

void measure(const Job& job) {
  trestle::virtual_devices(*std::max_element(job.devices.begin(), job.devices.end()));
  std::printf(
      "| devices | %s | parameters, M | against one device | share of ideal | peak MiB | "
      "balance |\n|---:|---:|---:|---:|---:|---|---|\n",
      job.grow.c_str());
  ordered_json rows = ordered_json::array();
  double on_one = 0;
  for (const int devices : job.devices) {
    const trestle::Stopwatch watch;
    const Fit fit = largest(job, devices);
    const auto parameters = static_cast<double>(fit.parameters);
    // Without a row for one device, compare with the first row.
    if (on_one == 0) on_one = parameters / devices;
    rows.push_back({{"devices", devices},
                    {"size", fit.size},
                    {"parameters", fit.parameters},
                    {"against_one", parameters / on_one},
                    {"share_of_ideal", parameters / on_one / devices},
                    {"peak_bytes", fit.peak_bytes},
                    {"balance", fit.balance},
                    {"seconds", watch.seconds()}});
    print_row(rows.back(), fit);
  }
  const ordered_json report{{"grow", job.grow}, {"budget", job.budget}, {"rows", rows}};
  std::cout << report.dump() << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("Finds the largest U-Net that trains on virtual devices.");
  Job job;
  std::string budget = "512MiB";
  app.add_option("--grow", job.grow, "width: wider; depth: more convolutions on each level")
      ->check(CLI::IsMember({"width", "depth"}));
  app.add_option("--devices", job.devices, "Numbers of devices to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 16));
  app.add_option("--budget", budget, "Memory of each device");
  app.add_option("--channels", job.channels, "Channels of the first level, for --grow depth");
  app.add_option("--batch", job.batch, "Images per mini-batch, and number of micro-batches");
  app.add_option("--rows", job.rows, "Height of an image");
  app.add_option("--columns", job.columns, "Width of an image");
  CLI11_PARSE(app, count, arguments);
  try {
    job.budget = trestle::parse_bytes(budget);
    measure(job);
  } catch (const std::exception& error) {
    std::cerr << "largest_unet: " << error.what() << "\n";
    return dynamic_cast<const trestle::UsageError*>(&error) ? 2 : 1;
  }
}
