#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "trestle/comm/completion.h"

namespace trestle::comm {

// What waits in a connection, so that it can be woken when the connection is broken. Breaking Gloo's
// connections alone does not wake everything: a large message that was half sent goes on waiting.
class InFlight {
 public:
  void begin(const std::shared_ptr<Completion>& completion);
  void end(const std::shared_ptr<Completion>& completion);

  // Waits for a message of the engine; throws where the wait was ended.
  void wait(c10d::Work& work, std::chrono::milliseconds deadline);

  // Now and from now on.
  void break_all(const std::string& reason);

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<Completion>> completions_;
  std::set<c10d::Work*> works_;
  std::optional<std::string> broken_;
};

}  // namespace trestle::comm
