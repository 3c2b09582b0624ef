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

class EngineConnection;

// Messages with a fingerprint from one other rank. The sender posts the fingerprint and then the
// message; here the fingerprints are read in their order by a thread, and a message is let in when the
// fingerprint fits the receive that waits for it: the engine ends the process where a message is
// larger than what it was to be written to.
class CheckedReceives {
 public:
  CheckedReceives(EngineConnection& connection, int from) : connection_(connection), from_(from) {}

  void add(Request request, std::shared_ptr<Completion> completion, std::function<void()> then);
  bool drain(std::chrono::steady_clock::time_point end) { return thread_.drain(end); }

 private:
  struct Receive {
    Request request;
    std::shared_ptr<Completion> completion;
    std::function<void()> then;  // after the message is there
    bool is_taken = false;
  };
  void serve(Receive& receive);
  Fingerprint next_print();
  std::shared_ptr<Receive> take(int tag);
  void finish(Receive& receive, std::optional<Failed> failed = {});
  void take_in(Receive& receive, const Fingerprint& sent);

  EngineConnection& connection_;
  const int from_;
  std::mutex mutex_;
  std::map<int, std::deque<std::shared_ptr<Receive>>> posted_;  // by tag
  std::map<int, std::deque<Fingerprint>> early_;  // came before their receive; the thread's
  JobThread thread_;
};

}  // namespace trestle::comm
