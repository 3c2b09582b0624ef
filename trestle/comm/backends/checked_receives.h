#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "trestle/comm/completion.h"
#include "trestle/comm/job_thread.h"
#include "trestle/comm/request.h"

namespace trestle::comm {

class BackendConnection;

// Receives messages with a fingerprint from one other rank. The sender sends the fingerprint before
// the message. A thread reads the fingerprints in order and posts the backend's receive only if the
// fingerprint matches: Gloo terminates the process if a message is larger than its buffer.
class CheckedReceives {
 public:
  CheckedReceives(BackendConnection& connection, int from) : connection_(connection), from_(from) {}

  void add(Request request, std::shared_ptr<Completion> completion, std::function<void()> then);
  bool drain(std::chrono::steady_clock::time_point end) { return thread_.drain(end); }

 private:
  struct Receive {
    Request request;
    std::shared_ptr<Completion> completion;
    std::function<void()> then;  // runs when the message has arrived
    bool is_taken = false;
  };
  void serve(Receive& receive);
  Fingerprint next_print();
  std::shared_ptr<Receive> take(int tag);
  void finish(Receive& receive, std::optional<Failed> failed = {});
  void complete(Receive& receive, const Fingerprint& sent);

  BackendConnection& connection_;
  const int from_;
  std::mutex mutex_;
  std::map<int, std::deque<std::shared_ptr<Receive>>> posted_;  // by tag
  std::map<int, std::deque<Fingerprint>> early_;  // before their receive; used by the thread only
  JobThread thread_;
};

}  // namespace trestle::comm
