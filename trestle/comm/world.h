#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/device.h"
#include "trestle/launch/rank_environment.h"

namespace trestle {

// All ranks of a run, and this process's rank among them. Copies share one state.
//
//   int main() {
//     auto world = trestle::init();   // torchrun, Slurm, MPI, trestle launch, or one lone rank
//     at::Tensor sum = torch::ones({4});
//     world.group().all_reduce(sum).wait();
//     return 0;
//   }
//
// The first error of any rank ends the communication of all ranks: every wait for another rank
// throws RankError with that reason within a second, and so does every later call. The exit of a
// rank's process and the destruction of its World by an exception count as errors. A rank may leave
// early, by destroying its World or by returning in spawn(); ranks that wait for it then fail at
// once.
//
// The last copy's destructor waits for everything in flight, at most for the deadline, and then
// leaves the world. If rank 0 hosts the ranks' store, its destructor waits until all ranks have
// left.
class World {
 public:
  class Impl;
  explicit World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  bool is_on_this_machine(int rank) const;
  int restart() const;                    // how many times all ranks were restarted
  const std::string& backend() const;     // "gloo", "nccl", "threads"
  const std::string& started_by() const;  // RankEnvironment::source, or "spawn"

  const comm::Group& group() const;  // of all ranks
  // A group of some ranks, as PyTorch's new_group(). Every rank of the world makes the same groups
  // in the same order. Ranks outside the group get a Group that is not valid().
  comm::Group make_group(const std::vector<int>& ranks) const;

  // Declares this rank's devices; all ranks call it. Throws UsageError on all ranks if two ranks
  // name one device: they would share its backward thread, and block each other. The plain cpu may
  // be shared. Another call replaces this rank's devices.
  void own_devices(const std::vector<Device>& devices) const;

  // Sets this rank's status, a few words, for other ranks' messages when a deadline passes. It is
  // cheap enough to call at every action.
  void report_status(std::string status) const;
  // The last status of `rank`, its age, and the time since its last heartbeat, as text for
  // messages.
  std::string status_of(int rank) const;

  // Fails the world: all ranks' waits end with this reason. The first reason wins. A Work that
  // fails calls it itself.
  void fail(const std::string& reason) const;
  // The reason, once the world has failed. If it comes from fail(), its last line names the rank.
  std::optional<std::string> failure() const;
  // The rank whose fail() was first, which should print the error. Nothing if no rank has failed,
  // or if the other ranks detected the failure, as of a process that was killed.
  std::optional<int> failed_rank() const;

 private:
  std::shared_ptr<Impl> impl_;
};

struct InitOptions {
  // "gloo", "nccl", or "" = the environment variable TRESTLE_BACKEND, else gloo. If this libtorch
  // has no nccl, gloo is used, with a line on standard error.
  std::string backend = "";
  // The longest wait for other ranks, including the rendezvous.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // This process's rank; empty = read_rank_environment().
  std::optional<launch::RankEnvironment> environment = {};
};

// Joins the other ranks, as PyTorch's init_process_group(). Throws UsageError for environment
// variables that contradict each other, for a world size that differs between ranks, and for a rank
// number used twice; DeadlineError, with the missing ranks, if not all ranks arrive; RankError if
// the address does not answer or the port is in use. A process may call it again once the last copy
// of its World and all groups are destroyed; all ranks make the same worlds.
World init(const InitOptions& options = {});

}  // namespace trestle
