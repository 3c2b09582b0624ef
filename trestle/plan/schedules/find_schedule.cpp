#include "trestle/plan/schedules/find_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/schedules/fill_weight_grads.h"
#include "trestle/schedule/generate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using schedule::Schedule;

// An order of forwards and backwards, to be filled.
struct Order {
  Schedule table;
  std::string words;  // "zb_h1"
};

// 1F1B with `more` forwards before the first backward of the first rank, and evenly fewer on later
// ones: ZB-H1 to ZB-H2 in steps.
Schedule with_more_forwards(int ranks, int micro_batches, int more) {
  Schedule table;
  table.name = "1f1b";
  table.stages = ranks;
  table.micro_batches = micro_batches;
  for (int rank = 0; rank < ranks; ++rank) {
    table.rank_of_stage.push_back(rank);
    const int later = ranks - 1 - rank;
    const int extra = ranks > 1 ? more * later / (ranks - 1) : 0;
    auto& row = table.ranks.emplace_back();
    int forwards = 0;
    for (int backward = 0; backward < micro_batches; ++backward) {
      while (forwards < std::min(micro_batches, backward + later + 1 + extra))
        row.push_back(schedule::forward(rank, forwards++));
      row.push_back(schedule::input_grad(rank, backward));
    }
  }
  return table;
}

std::string micro_batches_in_words(int count) {
  return counted(count, "micro-batch", "micro-batches");
}

// Message and hint as sentences of one line.
std::string in_one_line(const Error& error) {
  std::string words = error.std::runtime_error::what();
  if (const std::string& hint = error.where().hint; !hint.empty()) words += ". " + hint;
  return words;
}

class ScheduleSearch {
 public:
  explicit ScheduleSearch(const ScheduleQuestion& question) : question_(question) {}

  ScheduleAnswer run() {
    for (const auto& known : schedule::known_schedules()) try_fixed(known);
    if (answer_.fixed.empty())
      throw UsageError(text("no schedule takes ", counted(question_.ranks, "rank"), " and ",
                            micro_batches_in_words(question_.micro_batches)),
                       {.hint = answer_.refused.empty() ? "" : answer_.refused.front().second});
    std::stable_sort(answer_.fixed.begin(), answer_.fixed.end(), [&](const auto& a, const auto& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.seconds < b.seconds : a.peak < b.peak;
    });
    if (answer_.fixed.front().fits) answer_.best = answer_.fixed.front();
    for (const Order& order : orders()) try_order(order);
    if (answer_.best && gain() < least_gain) answer_.best = answer_.fixed.front();
    return std::move(answer_);
  }

 private:
  // A table of its own has to be worth it.
  static constexpr double least_gain = 0.005;

  // The share of a step that the best one takes less than the fastest fixed one.
  double gain() const {
    const SimulatedSchedule& fixed = answer_.fixed.front();
    return fixed.fits ? 1 - answer_.best->seconds / fixed.seconds : 1;
  }

  Bytes limit_of(std::size_t rank) const {
    return question_.memory_of_rank.empty() ? question_.memory : question_.memory_of_rank.at(rank);
  }

  const std::optional<PlacedStages>& stages_of(const std::vector<int>& rank_of_stage) {
    const auto [found, is_new] = stages_.try_emplace(rank_of_stage);
    if (is_new) found->second = question_.stages(rank_of_stage);
    return found->second;
  }

  SimulatedSchedule simulate(std::string name, Schedule table, const PlacedStages& stages) {
    const std::vector<schedule::Recompute> modes(static_cast<std::size_t>(table.stages),
                                                 question_.recompute);
    SimulatedSchedule result{.name = std::move(name), .table = std::move(table), .timeline = {}};
    result.timeline = simulate::simulate(
        schedule::lower(result.table, {.routes = stages.routes, .recompute = modes}), stages.costs);
    result.timeline.title = result.name;
    result.stages_per_rank = result.table.stages / question_.ranks;
    result.seconds = schedule::makespan(result.timeline);
    const auto& peaks = result.timeline.peak_bytes;
    if (const auto most = std::max_element(peaks.begin(), peaks.end()); most != peaks.end()) {
      result.peak = *most;
      result.peak_rank = static_cast<int>(most - peaks.begin());
    }
    for (std::size_t rank = 0; rank < peaks.size(); ++rank)
      if (const Bytes limit = limit_of(rank); limit > 0 && peaks[rank] > limit) result.fits = false;
    ++answer_.simulated;
    return result;
  }

  void try_fixed(const schedule::ScheduleInfo& known) {
    if (question_.whole_batch_loss && !known.all_forwards_first) {
      answer_.refused.emplace_back(known.name,
                                   "the loss needs the whole batch, and this schedule begins a "
                                   "backward before the last forward");
      return;
    }
    std::string reason = "it takes several stages on each rank, and only 1 is tried";
    bool is_taken = false;
    std::vector<int> numbers = question_.stages_per_rank;
    if (known.stages_per_rank > 0) numbers = {known.stages_per_rank};
    for (const int each : numbers) {
      if (known.stages_per_rank == 0 && each == 1) continue;  // 1F1B, GPipe or ZB-H1
      reason = "the model has fewer layers than stages";
      try {
        Schedule table = schedule::generate(known.name, {.stages = question_.ranks * each,
                                                         .micro_batches = question_.micro_batches,
                                                         .stages_per_rank = each});
        const auto& stages = stages_of(table.rank_of_stage);
        if (!stages) continue;
        answer_.fixed.push_back(simulate(known.name, std::move(table), *stages));
        is_taken = true;
      } catch (const UsageError& error) {
        reason = in_one_line(error);
      }
    }
    if (!is_taken) answer_.refused.emplace_back(known.name, reason);
  }

  std::vector<Order> orders() const {
    std::vector<Order> all;
    for (const SimulatedSchedule& fixed : answer_.fixed)
      if (fixed.name != "model_parallel")
        all.push_back({fixed.table,
                       fixed.stages_per_rank > 1
                           ? text(fixed.name, " with ", fixed.stages_per_rank, " stages on a rank")
                           : fixed.name});
    if (question_.whole_batch_loss) return all;
    for (int more = 1; more < question_.ranks; ++more)
      all.push_back({with_more_forwards(question_.ranks, question_.micro_batches, more),
                     text("1f1b with ", more, " more forward(s) first")});
    return all;
  }

  // The bytes that the activations of a rank may have: what is left of its memory.
  Bytes room_of(const PlacedStages& stages, const std::vector<int>& rank_of_stage) const {
    std::vector<Bytes> used(static_cast<std::size_t>(question_.ranks), 0);
    for (std::size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
      const simulate::StageCost& cost = stages.costs.stages[stage];
      used[static_cast<std::size_t>(rank_of_stage[stage])] +=
          cost.persistent + cost.gradients +
          std::max(cost.transient_backward, cost.transient_weight_grad.value_or(0));
    }
    Bytes room = 0;  // what the fullest rank has left
    for (std::size_t rank = 0; rank < used.size(); ++rank)
      if (const Bytes limit = limit_of(rank); limit > 0) {
        const Bytes left = std::max<Bytes>(1, limit - used[rank]);
        room = room > 0 ? std::min(room, left) : left;
      }
    return room;
  }

  void try_order(const Order& order) {
    const auto& stages = stages_of(order.table.rank_of_stage);
    if (!stages) return;
    constexpr std::array patiences = {0.0, 0.5, 1.0};
    const Bytes room = room_of(*stages, order.table.rank_of_stage);
    for (const double patience : patiences) {
      for (const bool joins : {false, true}) {
        FilledSchedule filled =
            fill_weight_grads(order.table, stages->routes, stages->costs,
                              {.patience = patience, .activations = room, .joins = joins});
        // The simulator also counts shared cores and links, which only slow a step down. A joined B
        // and an F without a graph may be faster than these seconds.
        const double least = joins || question_.recompute != schedule::Recompute::Never ? 0.9 : 1;
        if (answer_.best && least * filled.seconds >= answer_.best->seconds) continue;
        if (std::find(seen_.begin(), seen_.end(), filled.table.ranks) != seen_.end()) continue;
        seen_.push_back(filled.table.ranks);
        SimulatedSchedule made = simulate("auto", std::move(filled.table), *stages);
        if (!made.fits) continue;
        if (answer_.best && made.seconds >= answer_.best->seconds) continue;
        made.table.name = "auto";
        made.made_from = text("the order of ", order.words, ", with W where the rank waits");
        answer_.best = std::move(made);
      }
    }
  }

  const ScheduleQuestion& question_;
  std::map<std::vector<int>, std::optional<PlacedStages>> stages_;
  std::vector<std::vector<std::vector<schedule::Action>>> seen_;  // the tables that were simulated
  ScheduleAnswer answer_;
};

std::string in_percent(double share) { return text(std::lround(100 * share), " %"); }

}  // namespace

std::vector<std::string> ScheduleAnswer::trades() const {
  std::vector<std::string> lines;
  if (!best) return lines;
  const SimulatedSchedule* smallest = nullptr;
  for (const SimulatedSchedule& other : fixed)
    if (other.fits && other.name != "model_parallel" && (!smallest || other.peak < smallest->peak))
      smallest = &other;
  const auto compare = [&](const SimulatedSchedule& other, const char* what) {
    if (other.name == best->name) return;
    const double faster = 1 - best->seconds / other.seconds;
    const Bytes more = best->peak - other.peak;
    lines.push_back(text(best->name, " takes ", in_percent(faster), " less time than ", other.name,
                         ", ", what, ", and ", format_bytes(std::abs(more)),
                         more >= 0 ? " more" : " less", " memory on its fullest rank"));
  };
  if (!fixed.empty() && fixed.front().fits) compare(fixed.front(), "the fastest fixed one");
  if (smallest && smallest != &fixed.front()) compare(*smallest, "the smallest that fits");
  return lines;
}

ScheduleAnswer find_schedule(const ScheduleQuestion& question) {
  for (const int number : {question.ranks, question.micro_batches})
    if (number < 1)
      throw UsageError(text(counted(question.ranks, "rank"), " and ",
                            micro_batches_in_words(question.micro_batches),
                            ": both must be at least 1"));
  // Its time grows with the orders, whose number grows with the ranks, and with their actions.
  constexpr std::int64_t most = 1 << 21;
  const std::int64_t squared = std::int64_t{question.ranks} * question.ranks;
  if (squared * question.micro_batches > most)
    throw UsageError(
        text("a search for ", counted(question.ranks, "rank"), " and ",
             micro_batches_in_words(question.micro_batches), " would take minutes"),
        {.hint = text(most < squared ? std::string("Give fewer ranks")
                                     : text("Give at most ", micro_batches_in_words(
                                                                 static_cast<int>(most / squared))),
                      ", or draw one schedule: trestle view.")});
  return ScheduleSearch(question).run();
}

}  // namespace trestle::plan
