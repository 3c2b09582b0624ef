#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "trestle/base/stopwatch.h"

namespace trestle::device {

// One clock for the host and for devices that work on their own: a GPU's work is timed by events in
// its stream, as of when it was done, not of when it was asked for.
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
    // Since the clock was made. Waits until the device has reached the mark.
    double seconds() const;

   private:
    friend class Clock;
    double host_ = 0;
    std::shared_ptr<const Start> start_ = nullptr;  // of devices with streams, like `event_`
    std::shared_ptr<const c10::Event> event_ = nullptr;
  };

  // The end of what has been asked of the device's current stream so far. Waits for the device once
  // a minute, to set its clock by the host's.
  Mark mark(at::Device device);

  double now() const { return watch_.seconds(); }

 private:
  std::shared_ptr<const Start> start_of(at::Device device);

  const Stopwatch watch_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Start>> starts_;
};

}  // namespace trestle::device
