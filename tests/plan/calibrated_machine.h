#pragma once

#include <string>

#include "trestle/base/files.h"
#include "trestle/plan/machine/machine.h"

namespace trestle::plan {

// A machine as trestle calibrate describes it, with few round figures.
inline Machine calibrated_machine() {
  Machine machine = parse_machine(
      read_text_file(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml"),
      "a100-8-per-node.toml");
  machine.name = "mine";
  machine.all_reduce.clear();
  machine.measured_on = MeasuredOn{.date = "2026-01-31",
                                   .cpu = "Test CPU",
                                   .cores = 2,
                                   .memory = 8.0 * (1 << 30),
                                   .trestle = "0.1.0",
                                   .libtorch = "2.13.0",
                                   .devices = "cpu, 1 thread per operator"};
  const auto figure = [](double value, double spread) {
    return Figure{.value = value, .origin = Origin::Measured, .from = "a test", .spread = spread};
  };
  machine.optimizers = {{"sgd", figure(1e-10, 0.125)}, {"adamw", figure(4e-10, 0.25)}};
  machine.fixed.kernel_start = figure(1e-6, 0.5);
  machine.fixed.process_memory = figure(2e8, 0);
  machine.products.push_back({.shape = ProductShape::Square,
                              .type = "fp32",
                              .origin = Origin::Measured,
                              .from = "a test",
                              .sizes = {64, 128},
                              .seconds = {1e-5, 6e-5},
                              .spread = {0.5, 0.25}});
  const auto messages = [&](Exchange kind, Reach reach, int ranks, double factor) {
    machine.messages.push_back({.kind = kind,
                                .over = "gloo",
                                .reach = reach,
                                .ranks = ranks,
                                .origin = Origin::Measured,
                                .from = "a test",
                                .bytes = {1000, 11'000},
                                .seconds = {factor * 1e-5, factor * 1.1e-4},
                                .spread = {0.5, 0.0}});
  };
  messages(Exchange::AllReduce, Reach::Inside, 2, 1);
  messages(Exchange::AllReduce, Reach::Inside, 4, 2);
  messages(Exchange::AllGather, Reach::Inside, 2, 0.5);
  messages(Exchange::AllReduce, Reach::Between, 2, 100);
  machine.copies.push_back({.path = CopyPath::ToHost,
                            .origin = Origin::Measured,
                            .from = "a test",
                            .bytes = {1e6},
                            .seconds = {1e-4},
                            .spread = {0.0}});
  return machine;
}

}  // namespace trestle::plan
