#include "trestle/schedule/generate.h"

#include <array>
#include <cstdint>
#include <limits>

#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule {
namespace {

struct NamedOrder {
  std::string_view name;
  BackwardOrder order;
};
constexpr std::array backward_orders = {NamedOrder{"reverse", BackwardOrder::Reverse},
                                        NamedOrder{"forward", BackwardOrder::Forward}};

// An action holds its stage in 16 bits. The other bounds keep a table in memory.
constexpr int most_stages = std::numeric_limits<std::int16_t>::max();
constexpr int most_micro_batches = 1 << 20;
constexpr std::int64_t most_forwards = 1 << 22;  // over all stages

void check_stages_per_rank(const generators::Generator& generator, const GenerateOptions& options) {
  const int given = options.stages_per_rank, needed = generator.stages_per_rank;
  if (needed != 0 && given != needed)
    throw UsageError(text("schedule '", generator.name, "' cannot have ", given,
                          given == 1 ? " stage" : " stages", " per rank"),
                     {.hint = text("It has ", needed, ". Leave stages_per_rank out.")});
  if (given >= 1 && options.stages % given == 0) return;
  if (given < 1)
    throw UsageError(
        text("schedule '", generator.name, "' cannot have ", given, " stages per rank"));
  const int below = options.stages / given * given;
  const bool has_above = below <= most_stages - given;
  throw UsageError(
      text("schedule '", generator.name, "' cannot have ", counted(options.stages, "stage"), ", ",
           given, " on each rank"),
      {.hint = text("Give ", below > 0 ? text(below) : "", below > 0 && has_above ? " or " : "",
                    has_above ? text(below + given) : "",
                    below > 0 || has_above ? " stages." : "fewer on each rank.")});
}

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
  const std::int64_t forwards = std::int64_t{options.stages} * options.micro_batches;
  if (forwards > most_forwards) {
    throw UsageError(
        text("schedule '", name, "' cannot have ", options.stages, " stages with ",
             options.micro_batches, " micro-batches: ", counted(forwards, "forward"),
             " are more than ", counted(most_forwards, "forward")),
        {.hint = text("Give at most ", most_forwards / options.stages, " micro-batches.")});
  }
}

}  // namespace

Schedule generate(std::string_view name, const GenerateOptions& options) {
  const auto& generator = choose("schedule", name, generators::all_generators());
  check_sizes(name, options);
  check_stages_per_rank(generator, options);
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
      list.push_back({.name = std::string(generator.name),
                      .summary = std::string(generator.summary),
                      .all_forwards_first = generator.all_forwards_first,
                      .splits_backward = generator.splits_backward,
                      .sizes = std::string(generator.sizes),
                      .stages_per_rank = generator.stages_per_rank,
                      .stage_order = generator.stage_order});
    }
    return list;
  }();
  return known;
}

int stages_per_rank(std::string_view name, int given) {
  if (given > 0) return given;
  constexpr int where_any = 2;
  for (const ScheduleInfo& known : known_schedules())
    if (known.name == name) return known.stages_per_rank > 0 ? known.stages_per_rank : where_any;
  return 1;
}

std::vector<int> ranks_of_stages(std::string_view name, int stages, int stages_per_rank) {
  const auto& generator = choose("schedule", name, generators::all_generators());
  const GenerateOptions options{.stages = stages, .stages_per_rank = stages_per_rank};
  check_sizes(name, options);
  check_stages_per_rank(generator, options);
  return generator.stage_order == StageOrder::V ? table_in_v(options).rank_of_stage
                                                : table_in_loop(options).rank_of_stage;
}

}  // namespace trestle::schedule
