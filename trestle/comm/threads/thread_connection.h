#pragma once

#include <memory>
#include <string>

#include "trestle/comm/connection.h"
#include "trestle/comm/threads/thread_hub.h"

namespace trestle::comm {

// A rank's end of a group of threads, or of a group of one rank.
class ThreadConnection : public Connection {
 public:
  ThreadConnection(Place place, std::shared_ptr<ThreadHub> hub)
      : Connection(std::move(place)), hub_(std::move(hub)) {}
  ~ThreadConnection() override { aborter()->retire(); }

  Work collective(Request request, Check check) override;
  Work message(Request request, Check check) override;
  void abort(const std::string& reason) override { hub_->kill(reason); }

 private:
  const std::shared_ptr<ThreadHub> hub_;
};

// Completions for requests to a hub, with the texts for a deadline's message.
std::shared_ptr<Completion> collective_completion(const Connection::Place& place,
                                                  const std::shared_ptr<ThreadHub>& hub,
                                                  const Request& request);
std::shared_ptr<Completion> message_completion(const Connection::Place& place,
                                               const Request& request);

}  // namespace trestle::comm
