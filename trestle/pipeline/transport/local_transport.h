#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <vector>

#include "trestle/pipeline/transport/channel.h"
#include "trestle/pipeline/transport/stage_transport.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/schedule.h"

namespace trestle::pipeline {

// Between ranks of one process: a channel for each route, micro-batch and direction.
class LocalTransport final : public StageTransport {
 public:
  LocalTransport(std::vector<schedule::Route> routes, std::vector<int> rank_of_stage, int ranks,
                 int micro_batches, std::chrono::milliseconds deadline,
                 device::CopyStreams& copies);

  // A sent message is already where its receiver finds it.
  void expect(int, std::vector<Expected>) override {}
  void flush(int) override {}

  void send(const Transfer& transfer, Message message, at::Device producer) override;
  Message receive(const Transfer& transfer, at::Device consumer) override;
  bool arrived(const Transfer& transfer) const override;
  void give_norms(int rank, std::vector<gradient_norm::StageNorm> own) override;
  bool has_norms() const override;
  std::vector<optim::GradientNorm> norms() override;
  void finished(int rank, const schedule::Action& action) override;
  void cancel(std::exception_ptr failure) override;
  std::exception_ptr failure() const override;

 private:
  Channel& channel(const Transfer& transfer);
  std::string missed_deadline(const Transfer& transfer) const;

  const std::vector<schedule::Route> routes_;
  const std::vector<int> rank_of_stage_;
  const int micro_batches_;
  const std::chrono::milliseconds deadline_;
  device::CopyStreams& copies_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Channel> channels_;       // [(route, micro-batch, direction)]
  std::vector<schedule::Action> last_;  // [rank] what it finished
  std::vector<bool> started_;
  std::vector<gradient_norm::StageNorm> norms_;
  std::set<int> without_norm_;  // ranks with stages whose norms are still missing
  std::exception_ptr failure_;
};

}  // namespace trestle::pipeline
