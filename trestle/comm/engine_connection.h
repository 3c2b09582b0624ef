#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/completion.h"
#include "trestle/comm/connection.h"
#include "trestle/comm/engine_calls.h"
#include "trestle/comm/in_flight.h"
#include "trestle/comm/job_thread.h"

namespace trestle::comm {

class CheckedReceives;

// A rank's end of a group that c10d's engines serve.
//
// Collectives are done one after the other by a thread of the connection, which compares what the
// ranks are about to do first: so they are asynchronous, and in one order on all ranks. Messages do
// not wait for collectives. Without a fingerprint they go to the engine as they are; with one, it goes
// ahead of them, and a thread for each rank that is received from takes in what fits alone.
class EngineConnection : public Connection, public std::enable_shared_from_this<EngineConnection> {
 public:
  using Backend = c10::intrusive_ptr<c10d::Backend>;

  // `gpu` may be null: then what lies on GPUs goes through the CPU. When the last owner goes, what is
  // under way is waited for, at most for the deadline.
  static std::shared_ptr<EngineConnection> make(Place place, Backend cpu, Backend gpu);
  ~EngineConnection() override;

  Work collective(Request request, Check check) override;
  Work message(Request request, Check check) override;
  void break_off(const std::string& reason) override;

  // For the connection's own parts: what an exception of the engine means, under a wait for `peer` of
  // the group (-1 = all).
  Failed failure_from(const std::exception& error, const Fingerprint& print, int peer);
  // A message of a deadline: who waits in what, and what the others said last.
  std::string late(const Fingerprint& print, int peer) const;
  Failed failed(const std::string& mismatch);

  c10d::Backend& cpu() const { return *cpu_; }
  c10d::Backend& engine_for(const at::Tensor& tensor) const;
  JobThread& keeper() { return keeper_; }
  InFlight& in_flight() { return in_flight_; }

 private:
  EngineConnection(Place place, Backend cpu, Backend gpu);
  bool end();
  struct OnGpu {
    at::Tensor output = {};  // to be copied to when the request is done
  };
  OnGpu to_host(Request& request) const;
  bool all_done_before(std::chrono::steady_clock::time_point end);
  // How it ended.
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
  std::mutex send_mutex_;  // a fingerprint and its message are posted together
  JobThread keeper_;       // waits for works that nobody waits for
  JobThread sequence_;     // does collectives
};

}  // namespace trestle::comm
