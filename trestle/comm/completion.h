#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "trestle/comm/control_plane.h"
#include "trestle/comm/work.h"

namespace trestle::comm {

class Work::State {
 public:
  State() = default;
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  virtual void wait() = 0;
  virtual bool wait_for(std::chrono::milliseconds time) = 0;
  virtual bool done() = 0;
};

// Why a request failed. Left: it needs a rank that has returned. That fails the world only when a
// rank waits for the request.
struct Failed {
  enum class How { Rank, Deadline, Left } how = How::Rank;  // RankError, DeadlineError, RankError
  std::string reason;

  [[noreturn]] void raise() const;
};

// The state of a Work that another thread finishes: of another rank, or of this rank.
class Completion : public Work::State {
 public:
  // `late` describes for a deadline's message which call waits, and for which ranks.
  Completion(std::shared_ptr<ControlPlane> control, std::chrono::milliseconds deadline,
             std::function<std::string()> late);

  void wait() override;
  bool wait_for(std::chrono::milliseconds time) override;
  bool done() override;

  // Only the first call has an effect. It runs the action of then(), without a lock, before any
  // wait returns.
  void finish(std::optional<Failed> failed = {});
  // Must be called before the request is in flight.
  void then(std::function<void(const std::optional<Failed>&)> action) { then_ = std::move(action); }

 private:
  const std::shared_ptr<ControlPlane> control_;
  const std::chrono::milliseconds deadline_;
  const std::function<std::string()> late_;
  std::function<void(const std::optional<Failed>&)> then_;
  std::mutex mutex_;
  std::condition_variable finished_;
  bool is_ending_ = false, is_finished_ = false;
  std::optional<Failed> failed_;
};

// "waited longer than 10 s: rank 0 in barrier number 1".
std::string deadline_message(std::chrono::milliseconds deadline, const std::string& what);
// "2.5 s".
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace trestle::comm
