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

// The waits of a connection, which end when the connection is aborted. Closing Gloo's connections
// does not end all of them: a large message that is half sent keeps waiting.
class InFlight {
 public:
  void begin(const std::shared_ptr<Completion>& completion);
  void end(const std::shared_ptr<Completion>& completion);

  // Waits for a message of the backend; throws if the wait was aborted.
  void wait(c10d::Work& work, std::chrono::milliseconds deadline);

  // Ends all present and future waits.
  void abort_all(const std::string& reason);

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<Completion>> completions_;
  std::set<c10d::Work*> works_;
  std::optional<std::string> broken_;
};

}  // namespace trestle::comm
