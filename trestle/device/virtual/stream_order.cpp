#include "trestle/device/virtual/stream_order.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual_device.h"

namespace trestle::virt {
namespace {

constexpr c10::StreamId pool_size = 32;
constexpr std::size_t most_findings = 20;

// For each stream by number, how many of its operators come before.
class VectorClock {
 public:
  std::uint64_t of(std::size_t stream) const { return stream < ticks_.size() ? ticks_[stream] : 0; }
  void join(const VectorClock& other) {
    ticks_.resize(std::max(ticks_.size(), other.ticks_.size()), 0);
    for (std::size_t i = 0; i < other.ticks_.size(); ++i)
      ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
  std::uint64_t advance(std::size_t stream) {
    ticks_.resize(std::max(ticks_.size(), stream + 1), 0);
    return ++ticks_[stream];
  }

 private:
  std::vector<std::uint64_t> ticks_;
};

struct RecordedEvent {
  VectorClock clock;
  double time = 0;
  int check = 0;  // number of the check in which it was recorded
};

// One stream's last access to a block.
struct LastAccess {
  std::size_t stream = 0;
  std::uint64_t tick = 0;
  std::string by;  // the operator
};

struct TrackedBlock {
  std::optional<std::size_t> owner;  // the stream it was allocated on
  std::optional<LastAccess> write;
  std::vector<LastAccess> reads;  // since the last write, one a stream
  std::set<std::size_t> kept_for;
};

class StreamOrder {
 public:
  std::size_t number(const c10::Stream& stream) {
    const std::pair<int, c10::StreamId> key{stream.device_index(), stream.id()};
    const auto [found, added] = numbers_.try_emplace(key, numbers_.size());
    if (added) {
      clocks_.emplace_back();
      names_.push_back(text("stream ", stream.id(), " of ", nth_device(stream.device_index())));
    }
    return found->second;
  }

  VectorClock& clock(std::size_t stream) {
    clocks_[stream].join(host_);  // work that the host has waited for precedes all it queues next
    return clocks_[stream];
  }
  VectorClock& host() { return host_; }

  std::uint64_t launch(std::size_t stream) { return clock(stream).advance(stream); }

  void access(std::size_t stream, std::uint64_t tick, const std::string& by,
              const BlockAccess& what) {
    if (!what.block) return;
    TrackedBlock& block = blocks_[what.block];
    const VectorClock& known = clocks_[stream];
    if (block.write && known.of(block.write->stream) < block.write->tick)
      report(stream, by, what.writes ? "writes to" : "reads", "wrote", *block.write);
    if (!what.writes) {
      std::erase_if(block.reads, [&](const LastAccess& use) { return use.stream == stream; });
      block.reads.push_back({stream, tick, by});
      return;
    }
    for (const LastAccess& read : block.reads) {
      if (known.of(read.stream) < read.tick) report(stream, by, "writes to", "reads", read);
    }
    block.reads.clear();
    block.write = LastAccess{stream, tick, by};
  }

  void allocate(const void* block, std::size_t stream) {
    if (block) blocks_[block] = {.owner = stream, .write = {}, .reads = {}, .kept_for = {}};
  }

  void keep(const void* block, std::size_t stream) {
    if (block) blocks_[block].kept_for.insert(stream);
  }

  void release(const void* memory) {
    const auto found = blocks_.find(memory);
    if (found == blocks_.end()) return;
    const TrackedBlock block = std::move(found->second);
    blocks_.erase(found);
    if (!block.owner) return;
    const VectorClock& known = clock(*block.owner);
    const auto check_use = [&](const LastAccess& use) {
      if (use.stream == *block.owner || block.kept_for.contains(use.stream) ||
          known.of(use.stream) >= use.tick)
        return;
      add(text("memory of ", names_[*block.owner], " is freed while ", use.by, " on ",
               names_[use.stream], " may still use it"));
    };
    if (block.write) check_use(*block.write);
    for (const LastAccess& read : block.reads) check_use(read);
  }

  void report(std::size_t stream, const std::string& by, const char* does, const char* did,
              const LastAccess& earlier) {
    add(text(by, " on ", names_[stream], " ", does, " memory that ", earlier.by, " on ",
             names_[earlier.stream], " ", did, ", and nothing orders the two"));
  }

  void add(std::string finding) {
    if (findings.size() >= most_findings) return;
    if (std::find(findings.begin(), findings.end(), finding) == findings.end())
      findings.push_back(std::move(finding));
  }

  // An event from before this check orders nothing that the check has seen.
  void wait_for(const RecordedEvent& event, VectorClock& waiting) const {
    if (event.check == check) waiting.join(event.clock);
  }

  std::vector<std::string> findings;
  Stopwatch watch;
  int check = 0;

 private:
  std::map<std::pair<int, c10::StreamId>, std::size_t> numbers_;
  std::vector<VectorClock> clocks_;
  std::vector<std::string> names_;
  VectorClock host_;
  std::unordered_map<const void*, TrackedBlock> blocks_;
};

std::atomic<bool> checking{false};
std::atomic<c10::StreamId> next_in_pool{0};
thread_local std::array<c10::StreamId, most_virtual_devices> current_ids{};

struct RunningCheck {
  std::mutex mutex;
  std::optional<StreamOrder> order;
  int number = 0;
};

// Never destroyed: a thread that outlives main() may still access it.
RunningCheck& running_check() {
  static RunningCheck& check = *new RunningCheck;
  return check;
}

// Does nothing without a running check, or if it has just ended.
template <class Work>
void with_order(Work work) {
  if (!checks_streams()) return;
  RunningCheck& check = running_check();
  const std::lock_guard lock(check.mutex);
  if (check.order) work(*check.order);
}

}  // namespace

bool checks_streams() { return checking.load(std::memory_order_relaxed); }

void begin_stream_check() {
  RunningCheck& check = running_check();
  const std::lock_guard lock(check.mutex);
  check.order.emplace().check = ++check.number;
  checking = true;
}

std::vector<std::string> stream_findings() {
  std::vector<std::string> findings;
  with_order([&](StreamOrder& known) { findings = known.findings; });
  return findings;
}

std::vector<std::string> end_stream_check() {
  auto findings = stream_findings();
  RunningCheck& check = running_check();
  const std::lock_guard lock(check.mutex);
  checking = false;
  check.order.reset();
  return findings;
}

c10::Stream current_stream(int device) {
  const c10::StreamId id = checks_streams() ? current_ids[static_cast<std::size_t>(device)] : 0;
  return c10::Stream(c10::Stream::UNSAFE, nth_device(device), id);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device_index());
  current_ids[static_cast<std::size_t>(stream.device_index())] = stream.id();
  return before;
}

c10::Stream next_pool_stream(int device) {
  const c10::StreamId id = checks_streams() ? 1 + next_in_pool.fetch_add(1) % pool_size : 0;
  return c10::Stream(c10::Stream::UNSAFE, nth_device(device), id);
}

void* record_event(const c10::Stream& stream) {
  auto* event = new RecordedEvent;
  with_order([&](StreamOrder& known) {
    event->clock = known.clock(known.number(stream));
    event->check = known.check;
    event->time = known.watch.seconds();
  });
  return event;
}

void destroy_event(void* event) noexcept { delete static_cast<RecordedEvent*>(event); }

void stream_waits(const c10::Stream& stream, void* event) {
  with_order([&](StreamOrder& known) {
    known.wait_for(*static_cast<RecordedEvent*>(event), known.clock(known.number(stream)));
  });
}

void host_waits(void* event) {
  with_order([&](StreamOrder& known) {
    known.wait_for(*static_cast<RecordedEvent*>(event), known.host());
  });
}

void host_waits(const c10::Stream& stream) {
  with_order([&](StreamOrder& known) { known.host().join(known.clock(known.number(stream))); });
}

void host_waits_for_device(int device) {
  for (c10::StreamId id = 0; id <= pool_size; ++id)
    host_waits(c10::Stream(c10::Stream::UNSAFE, nth_device(device), id));
}

double seconds_between(void* first, void* second) {
  return static_cast<RecordedEvent*>(second)->time - static_cast<RecordedEvent*>(first)->time;
}

void note_operator(const std::string& name, int device, const std::vector<BlockAccess>& accesses) {
  with_order([&](StreamOrder& known) {
    const std::size_t stream = known.number(current_stream(device));
    const std::uint64_t tick = known.launch(stream);
    for (const auto& access : accesses) known.access(stream, tick, name, access);
  });
}

void note_copy(const void* source, int source_device, const void* target, int target_device) {
  with_order([&](StreamOrder& known) {
    const std::size_t from = known.number(current_stream(source_device));
    const std::size_t to = known.number(current_stream(target_device));
    known.clock(from).join(known.clock(to));
    const std::uint64_t tick = known.launch(from);
    known.access(from, tick, "a copy between devices", {source, false});
    known.access(from, tick, "a copy between devices", {target, true});
    known.clock(to).join(known.clock(from));
  });
}

void note_allocation(const void* block, int device) {
  with_order(
      [&](StreamOrder& known) { known.allocate(block, known.number(current_stream(device))); });
}

void note_release(const void* block) noexcept {
  with_order([&](StreamOrder& known) { known.release(block); });
}

void keep_for_stream(const void* block, const c10::Stream& stream) {
  with_order([&](StreamOrder& known) { known.keep(block, known.number(stream)); });
}

}  // namespace trestle::virt
