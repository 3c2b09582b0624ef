#include "tests/view/samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <optional>

#include "trestle/base/files.h"
#include "trestle/base/units.h"
#include "trestle/schedule/generate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::view::samples {

using namespace trestle::literals;
using schedule::Timeline;

namespace {

schedule::LowerOptions two_skips() {
  using schedule::Recompute;
  return {.routes = {{{.from_stage = 0, .to_stage = 1, .skip = false, .name = "main"},
                      {.from_stage = 0, .to_stage = 1, .skip = true, .name = "s1"},
                      {.from_stage = 0, .to_stage = 1, .skip = true, .name = "s2"}}},
          .recompute = {Recompute::ExceptLast, Recompute::ExceptLast}};
}

}  // namespace

Timeline unit(const std::string& name, int stages, int micro_batches,
              const schedule::LowerOptions& options) {
  const schedule::Schedule table =
      schedule::generate(name, {.stages = stages, .micro_batches = micro_batches});
  Timeline timeline =
      simulate::simulate(schedule::lower(table, options), simulate::unit_costs(stages));
  timeline.title = "simulated";
  return timeline;
}

Timeline gpipe_with_skips() { return unit("gpipe", 2, 4, two_skips()); }

// The quick U-Net in two stages; with a link they are on two hosts.
static Timeline unet_with(const std::optional<simulate::Link>& link) {
  simulate::Costs costs;
  for (const double forward : {0.028, 0.021}) {
    costs.stages.push_back({.forward = forward,
                            .backward = 2.1 * forward,
                            .recompute = forward,
                            .forward_no_graph = 0.95 * forward,
                            .persistent = 40_MiB,
                            .saved = forward > 0.025 ? 31_MiB : 22_MiB,
                            .kept_for_recompute = 3_MiB,
                            .transient_forward = 9_MiB,
                            .transient_backward = 18_MiB});
  }
  const schedule::Schedule table =
      schedule::lower(schedule::generate("gpipe", {.stages = 2, .micro_batches = 4}), two_skips());
  costs.routes.assign(table.routes.size(), {.seconds = 0.0008, .bytes = 2_MiB});
  if (link) costs.network = simulate::Network{.link = *link, .hosts = {{0, 1}}};
  Timeline timeline = simulate::simulate(table, costs);
  timeline.title = "simulated";
  return timeline;
}

Timeline unet() { return unet_with(std::nullopt); }
Timeline unet_over_hosts() { return unet_with(simulate::parse_link("400Mbit,1ms")); }

Timeline over_tensor_ranks() {
  simulate::Costs costs;
  costs.stages = {{.forward = 2, .backward = 6}};
  costs.messages = {
      {.forward = {{.bytes = 1 << 20}}, .backward = {{.bytes = 1 << 20, .beside = 1}}}};
  simulate::set_message_times([](const LayerMessage&) { return 2.0; }, costs.messages.data(),
                              costs.stages.data());
  return simulate::simulate(
      schedule::lower(schedule::generate("gpipe", {.stages = 1, .micro_batches = 4}), {}), costs);
}

Timeline measured(Timeline of) {
  const auto stretch = [](double time) { return time * 1.035 + 0.0006 * std::sin(time * 210); };
  for (schedule::Event& event : of.events) {
    event.begin = stretch(event.begin);
    event.end = stretch(event.end);
  }
  for (schedule::MemorySample& sample : of.memory) {
    sample.time = stretch(sample.time);
    sample.bytes -= sample.bytes / 40;
  }
  of.title = "measured";
  return of;
}

Timeline by_hand() {
  Timeline timeline;
  timeline.title = "by hand";
  timeline.stages = 4;
  timeline.micro_batches = 1;
  timeline.rank_count = 4;
  timeline.rank_of_stage = {0, 1, 2, 3};
  for (int stage = 0; stage < 4; ++stage) {
    timeline.events.push_back({.rank = stage,
                               .action = schedule::forward(stage, 0),
                               .begin = 1.0 * stage,
                               .end = stage + 1.0});
  }
  for (int stage = 3; stage >= 0; --stage) {
    const double begin = 4 + 2.0 * (3 - stage);
    timeline.events.push_back(
        {.rank = stage, .action = schedule::backward(stage, 0), .begin = begin, .end = begin + 2});
  }
  return timeline;
}

void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/view/" + name;
  const char* update = std::getenv("TRESTLE_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    write_file(path, actual);
    return;
  }
  EXPECT_EQ(actual, read_file(path))
      << name << " changed. If the new picture is right, run again with TRESTLE_UPDATE_GOLDEN=1.";
}

}  // namespace trestle::view::samples
