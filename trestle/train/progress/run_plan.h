#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/train/progress/tensor_traffic.h"

// The plan of a run and its expected cost: the lines above the first epoch, and the output of
// --dry-run.
namespace trestle::train {

struct RunPlan {
  struct Stage {
    std::string device;  // "virtual:0"
    int layers = 0;
    Bytes predicted_peak = 0;  // of the device's memory, for all its stages
    Bytes budget = 0;          // 0 = no limit
  };

  std::string name;              // of the run
  std::filesystem::path folder;  // the run writes into it; empty for a dry run
  std::string devices;           // "2 virtual devices of 512 MiB on 2 cores"
  std::string model;
  int layers = 0;
  std::int64_t parameters = 0;
  std::int64_t frozen_parameters = 0;  // of these, those that the run does not train
  std::vector<int> balance;
  std::string balance_from;  // "given", "measured" or "resumed"
  std::vector<Stage> stages;
  std::string suggestion;  // what would make the run fit; empty where it is expected to
  std::string schedule;
  int micro_batches = 1;
  std::int64_t requested_micro_batches = 1;  // more than micro_batches if a batch has fewer samples
  std::string precision = "fp32";
  std::string recompute;
  std::string core_lending;      // "", "cores lent", or why requested lending is off
  bool channels_last = false;    // images and the weights of convolutions
  bool from_samples = false;     // the prediction is extrapolated from small samples
  bool timed_on_cpu = false;     // because the run's GPUs are not here
  double predicted_seconds = 0;  // of one batch: forward, backward, transfers
  // The part of it that is data-parallel communication; 0 = predicted_seconds has none.
  double predicted_communication_seconds = 0;
  double predicted_optimizer_seconds = 0;  // what the optimizer adds at the end of a step
  double predicted_idle = 0;               // share of the makespan
  std::int64_t parts = 1;                  // pipelines that share each batch
  double bytes_sent = 0;                   // by a rank among them, in one batch
  TensorTraffic tensor;
  std::string network;         // the link of the prediction; empty for one host
  std::string data_missing;    // why the number of examples is unknown; empty if known
  std::string synthetic_data;  // the folder of synthetic data; empty for real data
  std::int64_t training_examples = 0;
  std::int64_t validation_examples = 0;
  std::int64_t batch = 0;
  std::int64_t accumulate = 1;       // batches of one step
  std::int64_t steps_per_epoch = 0;  // batches of an epoch
  std::int64_t epochs = 0;
  std::int64_t max_steps = 0;   // 0 = epochs alone
  std::int64_t steps_done = 0;  // of a resumed run
  std::int64_t log_every = 0;   // batches between two lines of a log; 0 = one line an epoch
  std::string metric;           // "dice" or "accuracy"

  // Steps of the optimizer.
  std::int64_t optimizer_steps_per_epoch() const {
    return (steps_per_epoch + accumulate - 1) / accumulate;
  }
  // Optimizer steps of the whole run, unless it ends early.
  std::int64_t steps() const {
    const std::int64_t all = epochs * optimizer_steps_per_epoch();
    return max_steps > 0 ? std::min(max_steps, all) : all;
  }
};

// The versions: "trestle 0.1.0 · libtorch 2.13.0".
std::string versions();

}  // namespace trestle::train
