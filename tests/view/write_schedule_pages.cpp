// Writes the pages that schedule_browser_test.py opens: write_schedule_pages FOLDER.
#include <filesystem>
#include <iostream>

#include "trestle/base/files.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/routes.h"
#include "trestle/simulate/simulate.h"
#include "trestle/view/page/schedule_page.h"

namespace {

using namespace trestle;

// With a skip over all stages.
schedule::Timeline simulated(const std::string& name, int ranks, int micro_batches,
                             Bytes saved = 1 << 20) {
  const int each = schedule::stages_per_rank(name, 0), stages = ranks * each;
  auto routes = schedule::main_lane(stages);
  routes.push_back({.from_stage = 0, .to_stage = stages - 1, .skip = true, .name = "long <b>skip"});
  const auto table = schedule::lower(
      schedule::generate(
          name, {.stages = stages, .micro_batches = micro_batches, .stages_per_rank = each}),
      {.routes = routes});
  simulate::Costs costs = simulate::unit_costs(stages);
  for (auto& stage : costs.stages) stage.saved = saved;
  schedule::Timeline timeline = simulate::simulate(table, costs);
  timeline.title = name;
  return timeline;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::cerr << "usage: write_schedule_pages FOLDER\n";
    return 2;
  }
  const std::filesystem::path folder = words[1];
  std::filesystem::create_directories(folder);
  write_file(folder / "schedules.html",
             view::schedule_page(
                 {simulated("zbv", 4, 8), simulated("1f1b", 4, 8), simulated("dualpipev", 4, 8)},
                 {.title = "Three schedules"}));
  write_file(folder / "counted.html", view::schedule_page({simulated("1f1b", 4, 8, 0)}));
  auto hostile = simulated("gpipe", 2, 2);
  hostile.title = "</script><script>window.broken = 1</script><img src=x onerror=alert(1)>";
  write_file(folder / "hostile.html", view::schedule_page({hostile}));
  return 0;
}
