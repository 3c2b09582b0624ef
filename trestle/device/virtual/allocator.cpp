#include "trestle/device/virtual/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <atomic>
#include <mutex>

#include "trestle/base/text.h"
#include "trestle/device/layer_scope.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/block_cache.h"
#include "trestle/device/virtual/stream_order.h"
#include "trestle/device/virtual_device.h"

namespace trestle::virt {
namespace {

thread_local int charged_device = no_device;

struct Meter {
  std::atomic<Bytes> current{0}, peak{0}, recent_peak{0}, budget{0};
  std::mutex mutex;  // guards the report
  std::optional<OutOfMemoryReport> refusal;
};

Meter& meter(int device) {
  static auto* meters =
      new std::array<Meter, most_virtual_devices>;  // outlives every tensor, even static ones
  return (*meters)[device];
}

BlockCache& cache() {
  static auto* blocks = new BlockCache;
  return *blocks;
}

// Precedes every block; its size keeps the block aligned to 64 bytes.
struct alignas(64) Header {
  std::size_t bytes;
  int device;
  int size_class;
};

[[noreturn]] void throw_out_of_memory(int device, Bytes requested, Bytes in_use) {
  Meter& m = meter(device);
  OutOfMemoryReport report{.device = nth_device(device),
                           .requested = requested,
                           .in_use = in_use,
                           .budget = m.budget.load(),
                           .peak = m.peak.load(),
                           .layer = current_layer()};
  if (const auto node = torch::autograd::get_current_node()) {
    report.node = node->name();
    report.node_sequence = node->sequence_nr();
  }
  std::string message =
      text(report.device, " is out of memory: requested ", format_bytes(requested), " (", requested,
           " bytes) with ", format_bytes(in_use), " in use of a budget of ",
           format_bytes(report.budget));
  // A peak from before the budget was lowered would only confuse.
  if (report.peak <= report.budget) message += ", peak " + format_bytes(report.peak);
  if (!report.layer.empty()) message += text(", in layer '", report.layer, "'");
  if (!report.node.empty()) message += text(", in the backward of ", report.node);
  // Without gradients nothing is kept that recomputation would free.
  const bool keeps = c10::GradMode::is_enabled() || !report.node.empty();
  message += text(". Use ",
                  keeps ? "more or smaller micro-batches, recomputation, more stages"
                        : "smaller batches, more devices",
                  ", or a larger budget (virtual:NxBYTES).");
  {
    const std::lock_guard lock(m.mutex);
    m.refusal = std::move(report);
  }
  C10_THROW_ERROR(OutOfMemoryError, message);
}

void raise_peak(std::atomic<Bytes>& peak, Bytes now) {
  Bytes before = peak.load(std::memory_order_relaxed);
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}

void count_up(int device, Bytes bytes) {
  Meter& m = meter(device);
  const Bytes now = m.current.fetch_add(bytes) + bytes;
  const Bytes limit = m.budget.load(std::memory_order_relaxed);
  if (limit > 0 && now > limit) {
    m.current.fetch_sub(bytes);
    throw_out_of_memory(device, bytes, now - bytes);
  }
  raise_peak(m.peak, now);
  raise_peak(m.recent_peak, now);
}

void count_down(int device, Bytes bytes) noexcept { meter(device).current.fetch_sub(bytes); }

void* take(int device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto counted = static_cast<Bytes>(bytes);
  if (device != no_device) count_up(device, counted);
  try {
    int size_class = 0;
    void* block = cache().take(bytes + sizeof(Header), size_class);
    return new (block) Header{bytes, device, size_class} + 1;
  } catch (...) {
    if (device != no_device) count_down(device, counted);
    throw;
  }
}

void release(void* memory) {
  if (!memory) return;
  if (checks_streams()) note_release(memory);
  Header* header = static_cast<Header*>(memory) - 1;
  if (header->device != no_device) count_down(header->device, static_cast<Bytes>(header->bytes));
  cache().give(header, header->size_class);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = take(charged_device, bytes);
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

class TaggedAllocator final : public c10::Allocator {
 public:
  explicit TaggedAllocator(int device) : device_(device) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = take(device_, bytes);
    if (checks_streams()) note_allocation(memory, device_);
    return {tagged(memory), memory, &release, nth_device(device_)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(untagged(to), untagged(from), bytes);
  }

 private:
  int device_;
};

// The allocator behind libtorch's own interfaces (at::accelerator memory statistics,
// c10::GetAllocator).
class BackendAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return device_allocator(current_device())->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(untagged(to), untagged(from), bytes);
  }
  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t) override { cache().clear(); }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    keep_for_stream(untagged(memory.get()), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const MemoryUsage now = usage(device);
    stats.allocated_bytes[0].current = now.current;
    stats.allocated_bytes[0].peak = now.peak;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const MemoryUsage now = usage(device);
    const Bytes free = std::max<Bytes>(0, now.budget - now.current);
    return {static_cast<std::size_t>(free), static_cast<std::size_t>(now.budget)};
  }
};

}  // namespace

ChargeScope::ChargeScope(int device) : outer_(charged_device) { charged_device = device; }
ChargeScope::~ChargeScope() { charged_device = outer_; }

int charged() { return charged_device; }

c10::Allocator* cpu_allocator() {
  static auto* allocator = new CpuAllocator;
  return allocator;
}

c10::Allocator* device_allocator(int device) {
  static auto* allocators = [] {
    auto* all = new std::array<c10::Allocator*, most_virtual_devices>;
    for (int i = 0; i < most_virtual_devices; ++i) (*all)[i] = new TaggedAllocator(i);
    return all;
  }();
  return (*allocators)[device];
}

void install_cpu_allocator() {
  constexpr std::uint8_t highest_priority = 255;
  c10::SetCPUAllocator(cpu_allocator(), highest_priority);
}

void install_allocators() {
  c10::SetAllocator(device_type, new BackendAllocator);
  install_cpu_allocator();
}

c10::DataPtr lifted(c10::DataPtr&& host, int device) {
  void* memory = host.get();
  if (checks_streams()) note_allocation(memory, device);
  const c10::DeleterFnPtr deleter = host.get_deleter();
  return {tagged(memory), host.release_context(), deleter, nth_device(device)};
}

MemoryUsage usage(int device) {
  const Meter& m = meter(device);
  return {.current = m.current.load(), .peak = m.peak.load(), .budget = m.budget.load()};
}

void reset_peak(int device) { meter(device).peak = meter(device).current.load(); }

Bytes take_recent_peak(int device) {
  Meter& m = meter(device);
  return m.recent_peak.exchange(m.current.load());
}

void set_device_budget(int device, Bytes bytes) { meter(device).budget = bytes; }

std::optional<OutOfMemoryReport> last_refusal(int device) {
  Meter& m = meter(device);
  const std::lock_guard lock(m.mutex);
  return m.refusal;
}

}  // namespace trestle::virt
