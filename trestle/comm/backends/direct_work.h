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
// a message if its work is destroyed before it was waited for. Such a work is handed to the
// connection's keeper thread, which waits for it.
class DirectWork : public Work::State {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  DirectWork(std::shared_ptr<BackendConnection> connection, const Fingerprint& print, int peer,
             Works works, std::vector<at::Tensor> tensors, std::function<void()> then);
  ~DirectWork() override;

  void wait() override;
  bool wait_for(std::chrono::milliseconds time) override;
  // The backend has no such query: the first call hands the work to the keeper thread.
  bool done() override;

 private:
  // Lives on when the DirectWork is destroyed.
  struct Message {
    Fingerprint print;
    int peer = -1;
    Works works;
    std::vector<at::Tensor> tensors;
    std::function<void()> then;
    std::mutex mutex;
    std::atomic<bool> is_finished = false;
    std::optional<Failed> failed;
  };
  enum class Late { Fails, Stays };
  // Waits at most for `time`. `late`: whether the message fails then, or stays unfinished.
  static void finish(BackendConnection& connection, Message& message,
                     std::chrono::milliseconds time, Late late);
  void give_to_keeper();

  const std::shared_ptr<BackendConnection> connection_;
  const std::shared_ptr<Message> message_;
  std::atomic<bool> is_kept_ = false;
};

}  // namespace trestle::comm
