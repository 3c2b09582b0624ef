#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/backends/backend_calls.h"
#include "trestle/comm/backends/in_flight.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/connection.h"
#include "trestle/comm/job_thread.h"

namespace trestle::comm {

class CheckedReceives;

// A rank's end of a group that uses c10d backends.
//
// A thread of the connection executes collectives one after another, so they are asynchronous and
// in one order on all ranks. Before each one it compares the ranks' requests. Messages do not wait
// for collectives. A message without a check goes straight to the backend. With a check, its
// fingerprint is sent first; the receiver has one thread per sender (CheckedReceives) that accepts
// only messages with a matching fingerprint.
class BackendConnection : public Connection,
                          public std::enable_shared_from_this<BackendConnection> {
 public:
  using Backend = c10::intrusive_ptr<c10d::Backend>;

  // `gpu` may be null: GPU tensors then go through the CPU. When the last owner releases the
  // connection, it waits for everything in flight, at most for the deadline.
  static std::shared_ptr<BackendConnection> make(Place place, Backend cpu, Backend gpu);
  ~BackendConnection() override;

  Work collective(Request request, Check check) override;
  Work message(Request request, Check check) override;
  void abort(const std::string& reason) override;

  // For CheckedReceives and DirectWork. The failure that an exception of the backend means, in a
  // wait for the group's rank `peer` (-1 = all ranks).
  Failed failure_from(const std::exception& error, const Fingerprint& print, int peer);
  // Text for a deadline's message: the call that waits, and the last status of the awaited ranks.
  std::string late(const Fingerprint& print, int peer) const;
  Failed failed(const std::string& mismatch);

  c10d::Backend& cpu() const { return *cpu_; }
  c10d::Backend& backend_for(const at::Tensor& tensor) const;
  // Run a job that waits for a message, in another thread. keep(): one job after the other, for
  // messages that the caller dropped. watch(): at once, for a message that the caller polls.
  void keep(std::function<void()> job) { keeper_.add(std::move(job)); }
  void watch(std::function<void()> job);
  InFlight& in_flight() { return in_flight_; }

 private:
  BackendConnection(Place place, Backend cpu, Backend gpu);
  bool end();
  struct OnGpu {
    at::Tensor output = {};  // the result is copied to it when the request is done
  };
  OnGpu to_host(Request& request) const;
  bool all_done_before(std::chrono::steady_clock::time_point end);
  // Returns the failure, if any.
  std::optional<Failed> do_collective(Request& request, Check check, const OnGpu& staged);
  std::shared_ptr<Completion> completion_of(const Fingerprint& print, int peer);
  Work send(Request request, Check check);
  Work receive(Request request, Check check);
  CheckedReceives& receives_from(int peer);

  const Backend cpu_, gpu_;
  std::mutex mutex_;
  std::uint64_t collectives_ = 0;
  std::atomic<bool> is_broken_ = false;
  std::map<int, std::unique_ptr<CheckedReceives>> receives_;
  InFlight in_flight_;
  std::mutex send_mutex_;  // keeps a fingerprint and its message together
  JobThread keeper_;
  std::vector<std::unique_ptr<JobThread>> watchers_;  // no more than messages polled at a time
  JobThread sequence_;                                // executes collectives
};

}  // namespace trestle::comm
