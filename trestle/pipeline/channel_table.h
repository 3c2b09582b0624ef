#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

#include "trestle/pipeline/channel.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/schedule.h"

// Everything the ranks of one run share: the channels, and the end of it all when one of them
// fails.
namespace trestle::pipeline {

using schedule::Transfer;

// Thrown in the ranks that only stop because another one failed; never reaches the caller.
struct Cancelled {};

class ChannelTable {
 public:
  ChannelTable(std::vector<schedule::Route> routes, std::vector<int> rank_of_stage, int ranks,
               int micro_batches, std::chrono::milliseconds deadline, device::CopyStreams& copies);

  // Puts a message where the other end of the route finds it. Never waits.
  void send(const Transfer& transfer, Message message, at::Device producer);

  // Waits for the message and moves it to `consumer`. Throws DeadlineError that names who waited
  // for whom, or Cancelled.
  Message receive(const Transfer& transfer, at::Device consumer);

  // Is there something to receive()? Throws Cancelled after cancel().
  bool arrived(const Transfer& transfer) const;

  // Says what `rank` finished last, for the message of a DeadlineError.
  void finished(int rank, const schedule::Action& action);

  // The first failure wins; every waiting rank is woken and throws Cancelled.
  void cancel(std::exception_ptr failure);
  std::exception_ptr failure() const;

 private:
  Channel& channel(const Transfer& transfer);
  std::string overdue(const Transfer& transfer) const;

  const std::vector<schedule::Route> routes_;
  const std::vector<int> rank_of_stage_;
  const int micro_batches_;
  const std::chrono::milliseconds deadline_;
  device::CopyStreams& copies_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Channel> channels_;       // [(route, micro-batch, way)]
  std::vector<schedule::Action> last_;  // for each rank
  std::vector<bool> started_;
  std::exception_ptr failure_;
};

}  // namespace trestle::pipeline
