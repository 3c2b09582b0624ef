#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "trestle/base/stopwatch.h"

namespace trestle::device {

// One clock for the host and for asynchronous devices. A GPU's work is timed by events in its
// stream, so a mark gives the time at which the work was done, not the time at which it was queued.
//
//   Clock clock;
//   const auto begin = clock.mark(device);
//   const auto y = layer(x);
//   const auto end = clock.mark(device);
//   const double took = end.seconds() - begin.seconds();
class Clock {
  struct Start {
    c10::Event event;
    double seconds;
  };

 public:
  class Mark {
   public:
    // Seconds since the clock was created. Waits until the device has reached the mark.
    double seconds() const;

   private:
    friend class Clock;
    double host_ = 0;
    std::shared_ptr<const Start> start_ = nullptr;  // for devices with streams, like `event_`
    std::shared_ptr<const c10::Event> event_ = nullptr;
  };

  // Marks the end of the work queued in the device's current stream. Waits for the device once a
  // minute, to synchronize its clock with the host's.
  Mark mark(at::Device device);

  double now() const { return watch_.seconds(); }

 private:
  std::shared_ptr<const Start> start_of(at::Device device);

  const Stopwatch watch_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Start>> starts_;
};

}  // namespace trestle::device
