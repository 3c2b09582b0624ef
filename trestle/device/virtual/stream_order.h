#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <string>
#include <vector>

// The order that streams and events give to a virtual device's operators, and what that order leaves
// open. Kept only while somebody checks (stream_check.h); operators themselves always run at once.
//
// Each stream has a vector clock: how much of every other stream's work is known to come before its
// next operator. An event carries its stream's clock; a stream or the host that waits for it takes
// the clock over. An access to memory whose earlier access is not covered by the clock is a race, as
// is memory that is let go while a stream that did not allocate it may still use it.
namespace trestle::virt {

// Is somebody checking? Costs one relaxed load.
bool checks_streams();
void begin_stream_check();
std::vector<std::string> end_stream_check();  // returns the findings
std::vector<std::string> stream_findings();

// The stream that this thread's operators on `device` go to: the default one unless somebody checks.
c10::Stream current_stream(int device);
c10::Stream exchange_current_stream(c10::Stream stream);  // returns the one before, of its device
c10::Stream next_pool_stream(int device);

void* record_event(const c10::Stream& stream);  // a new event
void destroy_event(void* event) noexcept;
void stream_waits(const c10::Stream& stream, void* event);
void host_waits(void* event);
void host_waits(const c10::Stream& stream);
void host_waits_for_device(int device);
double seconds_between(void* first, void* second);

// What an operator does to a block of memory; `block` is the storage's pointer without its tag.
struct BlockAccess {
  const void* block = nullptr;
  bool writes = false;
};

// An operator on the current stream of `device`.
void note_operator(const std::string& name, int device, const std::vector<BlockAccess>& accesses);
// A copy from one device to another, as CUDA does it: on the source's current stream, after what the
// target's current stream has been asked for so far, and before what it is asked for next.
void note_copy(const void* source, int source_device, const void* target, int target_device);
void note_allocation(const void* block, int device);
void note_release(const void* block) noexcept;
// The block stays until the stream has done what it has been asked for so far.
void keep_for_stream(const void* block, const c10::Stream& stream);

}  // namespace trestle::virt
