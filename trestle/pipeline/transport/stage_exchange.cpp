#include "trestle/pipeline/transport/stage_exchange.h"

#include <algorithm>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"
#include "trestle/device/error_context.h"

namespace trestle::pipeline {

StageExchange::StageExchange(StageRoutes stages, std::shared_ptr<RankLink> link,
                             std::unique_ptr<StageTransport> transport)
    : stages_(std::move(stages)), link_(std::move(link)), transport_(std::move(transport)) {}

bool StageExchange::crosses(std::size_t route) const {
  if (!over_ranks()) return false;
  const auto& ends = stages_.routes.at(route);
  return rank_of(ends.from_stage) != rank_of(ends.to_stage);
}

void StageExchange::carry(int stage, Way way, int micro_batch, const Give& give, const Take& take) {
  if (!over_ranks()) return;
  const bool forwards = way == Way::Activation;
  std::vector<std::size_t> routes;
  for (std::size_t r = 0; r < stages_.routes.size(); ++r) {
    const auto& ends = stages_.routes[r];
    if ((forwards ? ends.to_stage : ends.from_stage) == stage && crosses(r)) routes.push_back(r);
  }
  if (!forwards)
    std::stable_sort(routes.begin(), routes.end(), [&](std::size_t a, std::size_t b) {
      return stages_.routes[a].to_stage > stages_.routes[b].to_stage;
    });
  std::vector<Transfer> expected;
  for (const std::size_t r : routes) {
    const auto& ends = stages_.routes[r];
    const Transfer transfer{static_cast<int>(r), micro_batch, way};
    if (is_here(forwards ? ends.from_stage : ends.to_stage)) send(r, transfer, give);
    if (is_here(stage)) expected.push_back(transfer);
  }
  if (!expected.empty()) receive(expected, take);
}

// Other ranks get the message with this rank's number. A RankError names its rank already.
void StageExchange::cancel() {
  try {
    try {
      throw;
    } catch (const RankError&) {
      throw;
    } catch (...) {
      rethrow_with_context(text("on rank ", link_->rank()));
    }
  } catch (...) {
    transport_->cancel(std::current_exception());
    throw;
  }
}

void StageExchange::send(std::size_t route, const Transfer& transfer, const Give& give) {
  const auto& ends = stages_.routes[route];
  const int maker = transfer.way == Way::Activation ? ends.from_stage : ends.to_stage;
  Message message;
  for (const auto& value : stages_.values[route]) message.push_back(give(maker, value));
  transport_->send(transfer, std::move(message), at::kCPU);
}

void StageExchange::receive(const std::vector<Transfer>& transfers, const Take& take) {
  std::vector<StageTransport::Expected> expected;
  for (const auto& transfer : transfers) expected.push_back({transfer, at::kCPU});
  transport_->expect(link_->rank(), std::move(expected));
  for (const auto& transfer : transfers) {
    Message message = transport_->receive(transfer, at::kCPU);
    const auto& values = stages_.values[static_cast<std::size_t>(transfer.route)];
    for (std::size_t i = 0; i < values.size(); ++i) take(values[i], std::move(message.at(i)));
  }
}

void StageExchange::barrier() const {
  if (over_ranks()) link_->group().barrier();
}

}  // namespace trestle::pipeline
