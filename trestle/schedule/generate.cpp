#include "trestle/schedule/generate.h"

#include <array>
#include <limits>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generators/generators.h"

namespace trestle::schedule {
namespace {

struct NamedOrder {
  std::string_view name;
  BackwardOrder order;
};
constexpr std::array backward_orders = {NamedOrder{"reverse", BackwardOrder::Reverse},
                                        NamedOrder{"forward", BackwardOrder::Forward}};

// An action holds its stage in 16 bits. The bound on micro-batches keeps a table in memory.
constexpr int most_stages = std::numeric_limits<std::int16_t>::max();
constexpr int most_micro_batches = 1 << 20;

void check_sizes(std::string_view name, const GenerateOptions& options) {
  if (options.stages < 1 || options.stages > most_stages) {
    throw UsageError(text("schedule '", name, "' cannot have ", options.stages, " stages"),
                     {.hint = text("Give between 1 and ", most_stages, ".")});
  }
  if (options.micro_batches < 1 || options.micro_batches > most_micro_batches) {
    throw UsageError(
        text("schedule '", name, "' cannot have ", options.micro_batches, " micro-batches"),
        {.hint = text("Give between 1 and ", most_micro_batches, ".")});
  }
}

}  // namespace

Schedule generate(std::string_view name, const GenerateOptions& options) {
  const auto& generator = choose("schedule", name, generators::all_generators());
  check_sizes(name, options);
  Schedule schedule = generator.make(options);
  schedule.name = name;
  return schedule;
}

BackwardOrder parse_backward_order(std::string_view name) {
  return choose("backward order", name, backward_orders).order;
}

std::vector<std::string> backward_order_names() {
  std::vector<std::string> names;
  for (const auto& order : backward_orders) names.emplace_back(order.name);
  return names;
}

const std::vector<ScheduleInfo>& known_schedules() {
  static const std::vector<ScheduleInfo> known = [] {
    std::vector<ScheduleInfo> list;
    for (const auto& generator : generators::all_generators()) {
      list.push_back({std::string(generator.name), std::string(generator.summary),
                      generator.all_forwards_first});
    }
    return list;
  }();
  return known;
}

namespace generators {

Schedule one_stage_per_rank(const GenerateOptions& options) {
  Schedule schedule;
  schedule.stages = options.stages;
  schedule.micro_batches = options.micro_batches;
  schedule.ranks.resize(static_cast<std::size_t>(options.stages));
  for (int stage = 0; stage < options.stages; ++stage) schedule.rank_of_stage.push_back(stage);
  return schedule;
}

}  // namespace generators
}  // namespace trestle::schedule
