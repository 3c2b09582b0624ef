#include "trestle/pipeline/relay.h"

#include <algorithm>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"
#include "trestle/device/error_context.h"

namespace trestle::pipeline {

Relay::Relay(const Cut& cut, const StageList& stages, std::vector<int> rank_of_stage,
             std::shared_ptr<RankLink> link, std::unique_ptr<Transport> transport)
    : cut_(cut),
      stages_(stages),
      rank_of_stage_(std::move(rank_of_stage)),
      link_(std::move(link)),
      transport_(std::move(transport)) {}

bool Relay::crosses(std::size_t route) const {
  const auto& ends = cut_.routes.at(route);
  return over_ranks() && rank_of(ends.from_stage) != rank_of(ends.to_stage);
}

void Relay::carry(int stage, Way way, int micro_batch, const Give& give, const Take& take) {
  if (!over_ranks()) return;
  const bool forwards = way == Way::Activation;
  std::vector<std::size_t> routes;
  for (std::size_t r = 0; r < cut_.routes.size(); ++r) {
    const auto& ends = cut_.routes[r];
    if ((forwards ? ends.to_stage : ends.from_stage) == stage && crosses(r)) routes.push_back(r);
  }
  if (!forwards)
    std::stable_sort(routes.begin(), routes.end(), [&](std::size_t a, std::size_t b) {
      return cut_.routes[a].to_stage > cut_.routes[b].to_stage;
    });
  std::vector<Transfer> coming;
  for (const std::size_t r : routes) {
    const auto& ends = cut_.routes[r];
    const Transfer transfer{static_cast<int>(r), micro_batch, way};
    if (stages_.has(forwards ? ends.from_stage : ends.to_stage)) send(r, transfer, give);
    if (stages_.has(stage)) coming.push_back(transfer);
  }
  if (!coming.empty()) receive(coming, take);
}

// The others hear where it happened; of what they said themselves, that is known.
void Relay::fail() {
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

void Relay::send(std::size_t route, const Transfer& transfer, const Give& give) {
  const auto& ends = cut_.routes[route];
  const int maker = transfer.way == Way::Activation ? ends.from_stage : ends.to_stage;
  Message message;
  for (const auto& value : cut_.route_values[route]) message.push_back(give(maker, value));
  transport_->send(transfer, std::move(message), at::kCPU);
}

void Relay::receive(const std::vector<Transfer>& transfers, const Take& take) {
  std::vector<Transport::Expected> expected;
  for (const auto& transfer : transfers) expected.push_back({transfer, at::kCPU});
  transport_->expect(link_->rank(), std::move(expected));
  for (const auto& transfer : transfers) {
    Message message = transport_->receive(transfer, at::kCPU);
    const auto& values = cut_.route_values[static_cast<std::size_t>(transfer.route)];
    for (std::size_t i = 0; i < values.size(); ++i) take(values[i], std::move(message.at(i)));
  }
}

void Relay::meet() const {
  if (over_ranks()) link_->group().barrier();
}

}  // namespace trestle::pipeline
