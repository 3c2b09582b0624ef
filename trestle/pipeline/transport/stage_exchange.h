#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/pipeline/transport/rank_link.h"
#include "trestle/pipeline/transport/stage_transport.h"
#include "trestle/schedule/routes.h"

namespace trestle::pipeline {

// The routes between stages, and where the stages are.
struct StageRoutes {
  std::vector<schedule::Route> routes;
  std::vector<std::vector<nn::ValueId>> values;  // [route] what it carries
  std::vector<int> rank_of_stage;
};

// Moves values between the ranks of a pipeline while its stages run one after the other, forwards
// or backwards, without a table: profile() and find_nonfinite(). In one process it moves nothing:
// the caller holds all values.
class StageExchange {
 public:
  using Way = Transfer::Way;
  using Give = std::function<StageValue(int stage, const nn::ValueId& value)>;
  using Take = std::function<void(const nn::ValueId& value, StageValue received)>;

  StageExchange() = default;  // in one process
  StageExchange(StageRoutes stages, std::shared_ptr<RankLink> link,
                std::unique_ptr<StageTransport> transport);

  bool over_ranks() const { return link_ != nullptr; }
  RankLink& link() const { return *link_; }
  int rank_of(int stage) const { return stages_.rank_of_stage.at(static_cast<std::size_t>(stage)); }
  // Whether the stages of a route are on different ranks.
  bool crosses(std::size_t route) const;

  // Moves to `stage` the values that stages of other ranks made for it: its inputs, or the
  // gradients of its outputs, those of the last stage first. On the rank that holds a value, `give`
  // returns it, for the stage that made it (for a gradient: the stage that used the value). On the
  // rank of `stage`, `take` receives it, on the CPU. All ranks call it for all stages in the same
  // order.
  void carry(int stage, Way way, int micro_batch, const Give& give, const Take& take);

  // Runs `job`, which all ranks run at the same time, and waits until other ranks have received all
  // messages. An error on one rank ends it on all ranks.
  template <class Job>
  void run(const Job& job) {
    if (!transport_) return job();
    try {
      job();
      transport_->flush(link_->rank());
    } catch (const Cancelled&) {
      std::rethrow_exception(transport_->failure());
    } catch (...) {
      cancel();
    }
  }

  // Waits for all ranks.
  void barrier() const;

 private:
  bool is_here(int stage) const { return rank_of(stage) == link_->rank(); }
  [[noreturn]] void cancel();  // with the exception that is being handled
  void send(std::size_t route, const Transfer& transfer, const Give& give);
  void receive(const std::vector<Transfer>& transfers, const Take& take);

  const StageRoutes stages_ = {};
  const std::shared_ptr<RankLink> link_ = {};
  const std::unique_ptr<StageTransport> transport_ = {};
};

}  // namespace trestle::pipeline
