#include "trestle/plan/shared_devices.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace trestle::plan {
namespace {

constexpr std::size_t most_needs = 2000;

using Need = std::vector<double>;  // bytes on each device

bool is_covered(const Need& need, const Need& by) {
  for (std::size_t d = 0; d < need.size(); ++d)
    if (by[d] > need[d]) return false;
  return true;
}

// Needs of which none is at least another one on every device.
class Needs {
 public:
  void add(Need need) {
    for (const Need& known : all_)
      if (is_covered(need, known)) return;
    std::erase_if(all_, [&](const Need& known) { return is_covered(known, need); });
    all_.push_back(std::move(need));
  }
  void drop_largest() {
    if (all_.size() <= most_needs) return;
    const auto largest = [](const Need& need) {
      return *std::max_element(need.begin(), need.end());
    };
    std::stable_sort(all_.begin(), all_.end(),
                     [&](const Need& a, const Need& b) { return largest(a) < largest(b); });
    all_.resize(most_needs);
  }
  const std::vector<Need>& all() const { return all_; }

 private:
  std::vector<Need> all_;
};

class Search {
 public:
  explicit Search(const SharedDevices& problem)
      : problem_(problem),
        layers_(static_cast<int>(problem.may_cut.size()) - 1),
        stages_(static_cast<int>(problem.device_of_stage.size())) {}

  std::vector<double> times() const {
    std::vector<double> times;
    for (int first = 0; first < layers_; ++first)
      for (int last = first + 1; last <= layers_; ++last)
        if (can_cut(first) && can_cut(last)) times.push_back(problem_.seconds(first, last));
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    return times;
  }

  // Whether there is a cut whose stages take at most `limit`.
  bool fits(double limit) {
    limit_ = limit;
    const auto places = static_cast<std::size_t>(layers_) + 1;
    ends_.assign(static_cast<std::size_t>(stages_) + 1, std::vector<Needs>(places));
    at(0, layers_).add(Need(problem_.budgets.size(), 0));
    for (int count = 1; count <= stages_; ++count)
      for (int first = layers_ - count; first >= 0; --first) add_stage(count, first);
    return !at(stages_, 0).all().empty();
  }

  // After fits().
  std::vector<int> cut() {
    std::vector<int> result;
    Need used(problem_.budgets.size(), 0);
    int first = 0;
    for (int count = stages_; count > 0; --count) {
      int last = layers_;
      for (; last > first; --last)
        if (may_be_stage(first, last) && continues(count, first, last, used)) break;
      add_to(used, count, first, last);
      result.push_back(last - first);
      first = last;
    }
    return result;
  }

 private:
  Needs& at(int count, int first) {
    return ends_[static_cast<std::size_t>(count)][static_cast<std::size_t>(first)];
  }
  bool can_cut(int place) const { return problem_.may_cut[static_cast<std::size_t>(place)]; }
  bool may_be_stage(int first, int last) const {
    return can_cut(first) && can_cut(last) && problem_.seconds(first, last) <= limit_;
  }
  // The device of the first of the last `count` stages.
  std::size_t device(int count) const {
    return static_cast<std::size_t>(
        problem_.device_of_stage[static_cast<std::size_t>(stages_ - count)]);
  }
  void add_to(Need& need, int count, int first, int last) const {
    if (problem_.budgets[device(count)] > 0) need[device(count)] += problem_.bytes(first, last);
  }
  bool within_budgets(const Need& need) const {
    for (std::size_t d = 0; d < need.size(); ++d)
      if (problem_.budgets[d] > 0 && need[d] > problem_.budgets[d]) return false;
    return true;
  }

  // The needs of the last `count` stages, which begin at layer `first`. Devices without an earlier
  // stage do not constrain the earlier stages.
  void add_stage(int count, int first) {
    for (int last = first + 1; last <= layers_ - count + 1; ++last) {
      if (at(count - 1, last).all().empty() || !may_be_stage(first, last)) continue;
      for (Need need : at(count - 1, last).all()) {
        add_to(need, count, first, last);
        if (!within_budgets(need)) continue;
        for (std::size_t d = 0; d < need.size(); ++d)
          if (!has_earlier_stage(d, stages_ - count)) need[d] = 0;
        at(count, first).add(std::move(need));
      }
    }
    at(count, first).drop_largest();
  }

  bool has_earlier_stage(std::size_t device, int stage) const {
    const auto begin = problem_.device_of_stage.begin();
    return std::find(begin, begin + stage, static_cast<int>(device)) != begin + stage;
  }

  // Whether the stages behind [first, last) fit beside it and what the stages before it use.
  bool continues(int count, int first, int last, Need used) {
    add_to(used, count, first, last);
    const auto& behind = at(count - 1, last).all();
    return std::any_of(behind.begin(), behind.end(), [&](Need need) {
      for (std::size_t d = 0; d < need.size(); ++d) need[d] += used[d];
      return within_budgets(need);
    });
  }

  const SharedDevices& problem_;
  const int layers_, stages_;
  double limit_ = 0;
  std::vector<std::vector<Needs>> ends_;  // [number of stages][first layer]
};

}  // namespace

std::optional<std::vector<int>> fastest_cut(const SharedDevices& problem) {
  Search search(problem);
  const std::vector<double> times = search.times();
  const auto fastest = std::partition_point(times.begin(), times.end(),
                                            [&](double limit) { return !search.fits(limit); });
  if (fastest == times.end()) return std::nullopt;
  search.fits(*fastest);
  return search.cut();
}

}  // namespace trestle::plan
