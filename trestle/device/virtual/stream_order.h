#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <string>
#include <vector>

// The order that streams and events define for a virtual device's operators, and accesses that this
// order leaves open. Kept only while a StreamCheck lives (stream_check.h); operators themselves
// always run at once.
//
// Each stream has a vector clock: how much of every other stream's work comes before its next
// operator. An event stores its stream's clock; a stream or the host that waits for it joins that
// clock into its own. An access is a race if the clock does not cover an earlier access to the same
// memory. Freeing memory is a race while a stream that did not allocate it may still use it.
namespace trestle::virt {

// Whether a StreamCheck lives. Costs one relaxed load.
bool checks_streams();
void begin_stream_check();
std::vector<std::string> end_stream_check();  // returns the findings
std::vector<std::string> stream_findings();

// The stream of this thread's operators on `device`: the default one without a check.
c10::Stream current_stream(int device);
c10::Stream exchange_current_stream(c10::Stream stream);  // returns that device's previous one
c10::Stream next_pool_stream(int device);

void* record_event(const c10::Stream& stream);  // a new event
void destroy_event(void* event) noexcept;
void stream_waits(const c10::Stream& stream, void* event);
void host_waits(void* event);
void host_waits(const c10::Stream& stream);
void host_waits_for_device(int device);
double seconds_between(void* first, void* second);

// One access of an operator to a block of memory; `block` is the storage's pointer without its tag.
struct BlockAccess {
  const void* block = nullptr;
  bool writes = false;
};

// An operator on the current stream of `device`.
void note_operator(const std::string& name, int device, const std::vector<BlockAccess>& accesses);
// A copy from one device to another, ordered as on CUDA: it runs on the source's current stream,
// after the work queued in the target's current stream, and before that stream's next work.
void note_copy(const void* source, int source_device, const void* target, int target_device);
void note_allocation(const void* block, int device);
void note_release(const void* block) noexcept;
// Keeps the block until the stream has done its queued work.
void keep_for_stream(const void* block, const c10::Stream& stream);

}  // namespace trestle::virt
