#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trestle/comm/backends/backend_connection.h"
#include "trestle/comm/completion.h"

namespace trestle::comm {

// A message that went to the backend without a fingerprint: wait() waits in the backend. Gloo drops
// a message if its work is destroyed before it was waited for, so a thread of the
// connection then waits for it.
class DirectWork : public Work::State {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  DirectWork(std::shared_ptr<BackendConnection> connection, const Fingerprint& print, int peer,
             Works works, std::vector<at::Tensor> tensors, std::function<void()> then);
  ~DirectWork() override;

  void wait() override;
  bool wait_for(std::chrono::milliseconds time) override;
  // The backend has no such query: the first call lets a thread of the connection wait.
  bool done() override;

 private:
  // Lives on when the DirectWork is destroyed.
  struct Message {
    Fingerprint print;
    int peer = -1;
    Works works;
    std::vector<at::Tensor> tensors;
    std::function<void()> then;
    std::timed_mutex mutex;  // held by the thread that waits in the backend
    std::atomic<bool> is_finished = false;
    std::optional<Failed> failed;  // constant once is_finished
  };
  enum class Late { Fails, Stays };
  // Waits at most for `time`, also for another thread that waits already. `late`: whether the
  // message fails then, or stays unfinished. Returns whether it is finished.
  static bool finish(BackendConnection& connection, Message& message,
                     std::chrono::milliseconds time, Late late);
  // Once for each message.
  void wait_elsewhere(void (BackendConnection::*run)(std::function<void()> job));

  const std::shared_ptr<BackendConnection> connection_;
  const std::shared_ptr<Message> message_;
  std::atomic<bool> has_waiter_ = false;
};

}  // namespace trestle::comm
