#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/rank_link.h"
#include "trestle/pipeline/stage_list.h"
#include "trestle/pipeline/transport.h"

namespace trestle::pipeline {

// Carries what stages make for each other over ranks where they run one after the other, in the order
// of the model or backwards, and not by a table: while they are measured, or searched for what went
// wrong. In one process it carries nothing, since whoever runs all stages has all values.
class Relay {
 public:
  using Way = Transfer::Way;
  using Give = std::function<StageValue(int stage, const ValueId& value)>;
  using Take = std::function<void(const ValueId& value, StageValue came)>;

  // In one process.
  Relay(const Cut& cut, const StageList& stages) : cut_(cut), stages_(stages) {}
  Relay(const Cut& cut, const StageList& stages, std::vector<int> rank_of_stage,
        std::shared_ptr<RankLink> link, std::unique_ptr<Transport> transport);

  bool over_ranks() const { return link_ != nullptr; }
  RankLink& link() const { return *link_; }
  int rank_of(int stage) const { return rank_of_stage_.at(static_cast<std::size_t>(stage)); }
  // Are its ends on different ranks?
  bool crosses(std::size_t route) const;

  // Brings `stage` what comes to it from stages of other ranks: activations for a forward, or the
  // gradients of its outputs, those of the last taker first. `give` is asked for a value where the
  // stage is that made it (of a gradient: that took the value), `take` gets it, on the CPU, where
  // `stage` is. All ranks call it for all stages, in one order.
  void carry(int stage, Way way, int micro_batch, const Give& give, const Take& take);

  // Runs what all ranks run together, and waits until what was sent has arrived. What goes wrong on one
  // rank ends it on all.
  template <class Job>
  void run(const Job& job) {
    if (!transport_) return job();
    try {
      job();
      transport_->flush(link_->rank());
    } catch (const Cancelled&) {
      std::rethrow_exception(transport_->failure());
    } catch (...) {
      fail();
    }
  }

  // Waits for all ranks.
  void meet() const;

 private:
  [[noreturn]] void fail();  // with the exception that is being handled
  void send(std::size_t route, const Transfer& transfer, const Give& give);
  void receive(const std::vector<Transfer>& transfers, const Take& take);

  const Cut& cut_;
  const StageList& stages_;
  const std::vector<int> rank_of_stage_ = {};
  const std::shared_ptr<RankLink> link_ = {};
  const std::unique_ptr<Transport> transport_ = {};
};

}  // namespace trestle::pipeline
