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

// All ranks of a run, and which one this is. A copy stands for the same.
//
//   int main() {
//     auto world = trestle::init();   // torchrun, Slurm, MPI, trestle launch, or one lone rank
//     at::Tensor sum = torch::ones({4});
//     world.group().all_reduce(sum).wait();
//     return 0;
//   }
//
// The first error of any rank ends the communication of all: every rank that waits for another one
// throws RankError with that reason within a second, and so does every later call. So does the end of
// a rank's process, and the destruction of its World by an exception. A rank may leave early, by
// letting its World go or by returning in spawn(): that is an error of whoever still waits for it, at
// once.
//
// The last copy's destructor waits for what is under way, at most for the deadline, and says goodbye;
// that of rank 0, where it holds the ranks' store, waits until the others have said it too.
class World {
 public:
  class Impl;
  explicit World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  int restart() const;                    // how often all ranks were started anew
  const std::string& backend() const;     // "gloo", "nccl", "threads"
  const std::string& started_by() const;  // RankEnvironment::source, or "spawn"

  const comm::Group& group() const;  // of all ranks
  // Of some of them. Every rank of the world makes the same groups in the same order, also those that
  // it is not in: it gets a Group that is not valid().
  comm::Group make_group(const std::vector<int>& ranks) const;

  // Says which devices are this rank's; all ranks call it. A device that two ranks name is a
  // UsageError on all: they would share its backward thread, and one's wait would stop the other. The plain cpu may
  // be shared. Calling it again replaces this rank's devices.
  void own_devices(const std::vector<Device>& devices) const;

  // What this rank did last, in a few words, for others' messages when a deadline passes. Cheap: may
  // be called at every action.
  void say_status(std::string status) const;
  // What `rank` said last, and how long ago it last showed a sign of life; for messages.
  std::string status_of(int rank) const;

  // Tells all ranks that this one failed, so that nobody waits for it. The first reason wins. Work
  // that fails does so by itself.
  void fail(const std::string& reason) const;
  // The reason, once any rank has failed; of fail() with that rank in its last line.
  std::optional<std::string> failure() const;
  // The rank whose fail() was first: the one to say it. Nothing where none has failed, or where the
  // others found out by themselves, as of a process that was killed.
  std::optional<int> failed_rank() const;

 private:
  std::shared_ptr<Impl> impl_;
};

struct InitOptions {
  // "gloo", "nccl", or "" = the environment variable TRESTLE_BACKEND, else gloo. Where this libtorch
  // has no nccl, gloo is taken, and one line on standard error says so.
  std::string backend = "";
  // The longest that any wait between ranks may take, also for all ranks to arrive.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // Who this is; empty = read_rank_environment().
  std::optional<launch::RankEnvironment> environment = {};
};

// Joins the other ranks. Throws UsageError for variables that contradict each other, for a world
// size that is not the same on all ranks and for a rank number that two have; DeadlineError, naming
// who is missing, where not all arrive; RankError where the address does not answer or the port is
// taken. A process may call it again once the last copy of its World and all groups are gone; all
// ranks make the same worlds.
World init(const InitOptions& options = {});

}  // namespace trestle
