#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "trestle/base/traffic.h"

namespace trestle {

// A collective of the ranks that split a layer, as one of them saw it. Times are seconds on the
// clock MessageLog::now().
struct LoggedMessage {
  MessageKind kind = MessageKind::AllReduce;
  Bytes bytes = 0;   // of the whole tensor
  double begin = 0;  // when the rank started it
  double wait = 0;   // when the rank began to wait for it: until then it computed
  double end = 0;    // when the rank had the result
};

// The messages between start() and take(), in the order of their ends. Any thread may add().
class MessageLog {
 public:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void start() {
    const std::scoped_lock lock(mutex_);
    messages_.clear();
    runs_ = true;
  }
  bool runs() const { return runs_; }
  void add(const LoggedMessage& message) {
    const std::scoped_lock lock(mutex_);
    if (runs_) messages_.push_back(message);
  }
  std::vector<LoggedMessage> take() {
    const std::scoped_lock lock(mutex_);
    runs_ = false;
    return std::exchange(messages_, {});
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> runs_ = false;
  std::vector<LoggedMessage> messages_;
};

// The same messages for the costs of a layer, without the times that they took here.
inline std::vector<LayerMessage> layer_messages(const std::vector<LoggedMessage>& logged) {
  std::vector<LayerMessage> messages;
  for (const LoggedMessage& one : logged)
    messages.push_back({.kind = one.kind, .bytes = one.bytes, .beside = one.wait - one.begin});
  return messages;
}

}  // namespace trestle
