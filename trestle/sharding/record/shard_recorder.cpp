#include "trestle/sharding/record/shard_recorder.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace trestle {
namespace sharding {

struct ShardRecorder::State {
  struct Open {
    std::size_t number;
    comm::Work work;
  };

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - record.begin).count();
  }
  void look() {
    std::erase_if(under_way, [this](const Open& open) {
      if (!open.work.done()) return false;
      if (record.events[open.number].end < 0) record.events[open.number].end = now();
      return true;
    });
  }

  std::mutex mutex;
  ShardRecord record;
  std::int64_t step = 0;
  std::vector<Open> under_way;
};

ShardRecorder ShardRecorder::start() {
  ShardRecorder recorder;
  recorder.state_ = std::make_shared<State>();
  recorder.state_->record.begin = std::chrono::steady_clock::now();
  return recorder;
}

void ShardRecorder::set_step(std::int64_t step) const {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->step = step;
}

ShardRecorder::Entry ShardRecorder::begin(What what, int part, const comm::Work* work) const {
  Entry entry;
  if (!state_) return entry;
  const std::lock_guard lock(state_->mutex);
  state_->look();
  entry.state_ = state_;
  entry.number_ = state_->record.events.size();
  state_->record.events.push_back(
      {.what = what, .part = part, .step = state_->step, .begin = state_->now(), .end = -1});
  if (work != nullptr) state_->under_way.push_back({.number = entry.number_, .work = *work});
  return entry;
}

void ShardRecorder::Entry::end() {
  const auto state = std::exchange(state_, nullptr);
  if (!state) return;
  const std::lock_guard lock(state->mutex);
  state->look();
  double& end = state->record.events[number_].end;
  if (end < 0) end = state->now();
}

void ShardRecorder::look() const {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->look();
}

ShardRecord ShardRecorder::take() const {
  const std::lock_guard lock(state_->mutex);
  state_->look();
  ShardRecord record = state_->record;
  std::erase_if(record.events, [](const ShardEvent& event) { return event.end < 0; });
  return record;
}

}  // namespace sharding

namespace {

using Spans = std::vector<std::pair<double, double>>;

// Without overlaps; events are in the order in which they began.
Spans spans_of(const ShardRecord& record, const std::function<bool(ShardEvent::What)>& which) {
  Spans spans;
  for (const ShardEvent& event : record.events) {
    if (!which(event.what)) continue;
    if (!spans.empty() && event.begin <= spans.back().second)
      spans.back().second = std::max(spans.back().second, event.end);
    else
      spans.emplace_back(event.begin, event.end);
  }
  return spans;
}

}  // namespace

double hidden_share(const ShardRecord& record) {
  using What = ShardEvent::What;
  const Spans sent =
      spans_of(record, [](What what) { return what == What::Gather || what == What::Reduce; });
  const Spans waits = spans_of(record, [](What what) { return what == What::Wait; });
  double all = 0, waited = 0;
  for (const auto& [begin, end] : sent) {
    all += end - begin;
    for (const auto& [from, to] : waits)
      waited += std::max(0.0, std::min(end, to) - std::max(begin, from));
  }
  return all > 0 ? 1 - waited / all : 0;
}

}  // namespace trestle
