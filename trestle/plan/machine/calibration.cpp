#include "trestle/plan/machine/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::plan {
namespace {

// A kernel's own memory grows with its version.
constexpr double same_memory = 0.02;

const MessageTable* nearest(const std::vector<MessageTable>& tables, const MessageQuery& query,
                            bool at_least) {
  const MessageTable* found = nullptr;
  for (const MessageTable& table : tables) {
    if (table.kind != query.kind || table.over != query.over || table.reach != query.reach)
      continue;
    if (at_least ? table.ranks < query.ranks : table.ranks > query.ranks) continue;
    if (found == nullptr || (at_least ? table.ranks < found->ranks : table.ranks > found->ranks))
      found = &table;
  }
  return found;
}

}  // namespace

std::string_view to_string(ProductShape shape) {
  constexpr std::array<std::string_view, 3> names = {"square", "tall", "thin"};
  return names.at(static_cast<std::size_t>(shape));
}

std::string_view to_string(Exchange exchange) {
  constexpr std::array<std::string_view, 4> names = {"all_reduce", "all_gather", "reduce_scatter",
                                                     "send"};
  return names.at(static_cast<std::size_t>(exchange));
}

std::string_view to_string(CopyPath path) {
  constexpr std::array<std::string_view, 4> names = {"on_device", "between_devices", "to_host",
                                                     "from_host"};
  return names.at(static_cast<std::size_t>(path));
}

double flops_of_product(ProductShape shape, double rows) {
  constexpr double ratio = 16;
  const double cube = 2 * rows * rows * rows;
  if (shape == ProductShape::Tall) return cube / (ratio * ratio);
  return shape == ProductShape::Thin ? cube / ratio : cube;
}

double time_at(const std::vector<double>& sizes, const std::vector<double>& seconds, double size) {
  if (size <= sizes.front()) return seconds.front();
  if (size >= sizes.back()) return seconds.back() * size / sizes.back();
  const auto above = static_cast<std::size_t>(
      std::distance(sizes.begin(), std::lower_bound(sizes.begin(), sizes.end(), size)));
  const double share = (size - sizes[above - 1]) / (sizes[above] - sizes[above - 1]);
  return seconds[above - 1] + share * (seconds[above] - seconds[above - 1]);
}

std::optional<double> message_seconds(const std::vector<MessageTable>& tables,
                                      const MessageQuery& query) {
  const MessageTable* below = nearest(tables, query, false);
  const MessageTable* above = nearest(tables, query, true);
  if (below == nullptr && above == nullptr) return std::nullopt;
  const auto time = [&](const MessageTable& table) {
    return time_at(table.bytes, table.seconds, query.bytes);
  };
  if (below == nullptr) return time(*above);
  if (above == nullptr) return time(*below) * (query.ranks - 1.0) / (below->ranks - 1.0);
  if (above->ranks == below->ranks) return time(*above);
  const double share = (query.ranks - 1.0 * below->ranks) / (above->ranks - below->ranks);
  return time(*below) + share * (time(*above) - time(*below));
}

std::vector<std::string> differences_of(const MeasuredOn& measured, const MeasuredOn& here) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const std::string& there, const std::string& now) {
    const auto shown = [](const std::string& value) { return value.empty() ? "none" : value; };
    if (there != now)
      differences.push_back(text(what, ": ", shown(there), " there, ", shown(now), " here"));
  };
  compare("processor", measured.cpu, here.cpu);
  compare("cores", text(measured.cores), text(here.cores));
  if (std::abs(measured.memory - here.memory) >
      same_memory * std::max(measured.memory, here.memory))
    compare("memory", format_bytes(static_cast<Bytes>(measured.memory)),
            format_bytes(static_cast<Bytes>(here.memory)));
  compare("GPU", measured.gpu, here.gpu);
  compare("trestle", measured.trestle, here.trestle);
  compare("libtorch", measured.libtorch, here.libtorch);
  return differences;
}

void check_measured_on(const std::optional<MeasuredOn>& measured, const MeasuredOn& here,
                       const std::string& file, OtherMachine other) {
  if (!measured) return;
  if (measured->date > here.date)  // both are written year first
    throw UsageError(
        text(file, ": 'date' in [measured_on] is ", measured->date, ", but today is ", here.date),
        {.hint = "Correct the clock, or measure again with trestle calibrate."});
  const std::vector<std::string> differences = differences_of(*measured, here);
  if (differences.empty() || other == OtherMachine::Allow) return;
  throw UsageError(
      text(file, ": was measured on another machine or with another version\n  ",
           join(differences, "\n  ")),
      {.hint = "Measure this machine with trestle calibrate --out FILE, or add --for-other-machine "
               "to plan for that one."});
}

}  // namespace trestle::plan
