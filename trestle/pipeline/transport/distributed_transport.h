#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "trestle/pipeline/transport/local_transport.h"
#include "trestle/pipeline/transport/message_header.h"
#include "trestle/pipeline/transport/rank_link.h"
#include "trestle/pipeline/transport/stage_transport.h"
#include "trestle/schedule/schedule.h"

namespace trestle::pipeline {

// Between ranks: point to point over a comm::Group. The receives of all first parts are posted when
// a run begins. If the last message of a route and micro-batch was whole in its first part, the
// rank waits for the next one itself: no other thread wakes up. A thread of the link reads all
// other messages in the order in which the rank needs them, and receives the rest of each. It stays
// at most one message ahead of the rank's actions: a message travels while the rank computes, and
// at most one is buffered. A failure of this rank fails all ranks. Messages between two stages of
// one rank go through a LocalTransport.
class DistributedTransport final : public StageTransport {
 public:
  DistributedTransport(std::shared_ptr<RankLink> link, const schedule::Schedule& table,
                       std::vector<schedule::Route> routes, std::chrono::milliseconds deadline,
                       device::CopyStreams& copies);
  ~DistributedTransport() override;

  void expect(int rank, std::vector<Expected> receives) override;
  void send(const Transfer& transfer, Message message, at::Device producer) override;
  Message receive(const Transfer& transfer, at::Device consumer) override;
  bool arrived(const Transfer& transfer) const override;
  void give_norms(int rank, std::vector<gradient_norm::StageNorm> own) override;
  bool has_norms() const override { return true; }
  std::vector<optim::GradientNorm> norms() override {
    return gradient_norm::in_stage_order(norms_);
  }
  void flush(int rank) override;
  void finished(int rank, const schedule::Action& action) override;
  void cancel(std::exception_ptr failure) override;
  std::exception_ptr failure() const override;

 private:
  struct Slot {
    Message message;
    std::exception_ptr out_of_memory;  // instead of the message, if the device had no room for it
    bool full = false;
  };
  struct Posted {
    Expected expected;
    std::size_t place = 0;  // among the messages of this run
    at::Tensor first = {};
    comm::Work work = {};
  };
  std::size_t slot_of(const Transfer& transfer) const;
  int tag_of(const Transfer& transfer) const;
  int rank_of(int stage) const { return rank_of_stage_.at(static_cast<std::size_t>(stage)); }
  int sender_of(const Transfer& transfer) const;
  int receiver_of(const Transfer& transfer) const;
  MessageId id_of(const Transfer& transfer) const { return {serial_, transfer}; }

  void receive_all(std::vector<Posted> posted);
  Message receive_here(Posted posted);
  void wait_for_sent(std::chrono::steady_clock::time_point end);
  Message read(Posted& posted);
  void fail(std::exception_ptr failure);
  std::string missed_deadline(const Transfer& transfer) const;
  std::string undelivered(const std::map<int, std::size_t>& left) const;

  const std::shared_ptr<RankLink> link_;
  const std::vector<schedule::Route> routes_;
  const std::vector<int> rank_of_stage_;
  const int micro_batches_;
  const std::chrono::milliseconds deadline_;
  const std::uint64_t serial_;
  LocalTransport local_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;                       // [(route, micro-batch, direction)]
  std::map<std::size_t, Posted> posted_;          // [slot] messages that the rank itself waits for
  std::vector<std::pair<int, comm::Work>> sent_;  // whole messages, and the ranks they went to
  std::size_t expected_ = 0;                      // messages of this run
  std::size_t taken_ = 0;                         // of these, those that receive() returned
  std::map<int, std::size_t> in_flight_;          // [rank] messages that it may not have received
  std::vector<gradient_norm::StageNorm> norms_;   // those of all ranks, after give_norms()
  int jobs_ = 0;                                  // in the link's threads
  std::exception_ptr failure_;
};

}  // namespace trestle::pipeline
