#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "trestle/comm/control.h"
#include "trestle/comm/work.h"

namespace trestle::comm {

class Work::State {
 public:
  State() = default;
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  virtual void wait() = 0;
  virtual bool done() = 0;
};

// How a request ended that did not end well. Left: it needs a rank that has returned, which is a
// failure of the world only if somebody waits for it.
struct Failed {
  enum class How { Rank, Deadline, Left } how = How::Rank;  // RankError, DeadlineError, RankError
  std::string reason;

  [[noreturn]] void raise() const;
};

// A Work that somebody else finishes: another rank's thread, or a thread of this rank.
class Completion : public Work::State {
 public:
  // `late` says what is being waited for, and for whom, in a message of a deadline.
  Completion(std::shared_ptr<Control> control, std::chrono::milliseconds deadline,
             std::function<std::string()> late);

  void wait() override;
  bool done() override;

  // The first call counts. `then` (below) runs in it, with no lock held, before any wait returns.
  void finish(std::optional<Failed> failed = {});
  // To be called before the request is under way.
  void then(std::function<void(const std::optional<Failed>&)> action) { then_ = std::move(action); }

 private:
  const std::shared_ptr<Control> control_;
  const std::chrono::milliseconds deadline_;
  const std::function<std::string()> late_;
  std::function<void(const std::optional<Failed>&)> then_;
  std::mutex mutex_;
  std::condition_variable finished_;
  bool is_ending_ = false, is_finished_ = false;
  std::optional<Failed> failed_;
};

// "waited longer than 10 s: " and what for; "2.5 s".
std::string deadline_message(std::chrono::milliseconds deadline, const std::string& what);
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace trestle::comm
