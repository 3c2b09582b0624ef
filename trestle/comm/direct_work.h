#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trestle/comm/completion.h"
#include "trestle/comm/engine_connection.h"

namespace trestle::comm {

// A message that went to the engine as it is: whoever waits for it waits in the engine. The engine
// forgets a message whose work is let go before it has been waited for; so that is given to the
// connection's keeper, which waits.
class DirectWork : public Work::State {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  DirectWork(std::shared_ptr<EngineConnection> connection, const Fingerprint& print, int peer,
             Works works, std::vector<at::Tensor> tensors, std::function<void()> then);
  ~DirectWork() override;

  void wait() override;
  // The engine cannot be asked; the first question sends the keeper to wait for it.
  bool done() override;

 private:
  // What lives on when the work is let go.
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
  static void finish(EngineConnection& connection, Message& message);
  void give_to_keeper();

  const std::shared_ptr<EngineConnection> connection_;
  const std::shared_ptr<Message> message_;
  std::atomic<bool> is_kept_ = false;
};

}  // namespace trestle::comm
