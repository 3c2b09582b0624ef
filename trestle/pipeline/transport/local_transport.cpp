#include "trestle/pipeline/transport/local_transport.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/transport/missed_deadline.h"

namespace trestle::pipeline {

LocalTransport::LocalTransport(std::vector<schedule::Route> routes, std::vector<int> rank_of_stage,
                               int ranks, int micro_batches, std::chrono::milliseconds deadline,
                               device::CopyStreams& copies)
    : routes_(std::move(routes)),
      rank_of_stage_(std::move(rank_of_stage)),
      micro_batches_(micro_batches),
      deadline_(deadline),
      copies_(copies),
      channels_(routes_.size() * micro_batches * 2),
      last_(ranks),
      started_(ranks, false),
      without_norm_(rank_of_stage_.begin(), rank_of_stage_.end()) {}

Channel& LocalTransport::channel(const Transfer& transfer) {
  return channels_.at(
      (static_cast<std::size_t>(transfer.route) * micro_batches_ + transfer.micro_batch) * 2 +
      (transfer.way == Transfer::Way::Gradient ? 1 : 0));
}

void LocalTransport::send(const Transfer& transfer, Message message, at::Device producer) {
  {
    std::lock_guard lock(mutex_);
    channel(transfer).put(std::move(message), producer);
  }
  changed_.notify_all();
}

Message LocalTransport::receive(const Transfer& transfer, at::Device consumer) {
  Channel& from = channel(transfer);
  {
    std::unique_lock lock(mutex_);
    const bool in_time =
        changed_.wait_for(lock, deadline_, [&] { return from.full() || failure_ != nullptr; });
    if (failure_) throw Cancelled{};
    if (!in_time) throw DeadlineError(missed_deadline(transfer));
  }
  // Only this rank takes from this channel, so the copy needs no lock.
  return from.take(consumer, copies_);
}

bool LocalTransport::arrived(const Transfer& transfer) const {
  std::lock_guard lock(mutex_);
  if (failure_) throw Cancelled{};
  return const_cast<LocalTransport*>(this)->channel(transfer).full();
}

void LocalTransport::give_norms(int rank, std::vector<gradient_norm::StageNorm> own) {
  {
    const std::lock_guard lock(mutex_);
    norms_.insert(norms_.end(), own.begin(), own.end());
    without_norm_.erase(rank);
  }
  changed_.notify_all();
}

bool LocalTransport::has_norms() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Cancelled{};
  return without_norm_.empty();
}

std::vector<optim::GradientNorm> LocalTransport::norms() {
  std::unique_lock lock(mutex_);
  const bool in_time = changed_.wait_for(
      lock, deadline_, [&] { return without_norm_.empty() || failure_ != nullptr; });
  if (failure_) throw Cancelled{};
  if (in_time) return gradient_norm::in_stage_order(norms_);
  const int missing = *without_norm_.begin();
  throw DeadlineError(text("the gradient norms of rank ", missing, " did not come within ",
                           deadline_.count(), " ms; the rank ",
                           started_[missing]
                               ? "last finished " + schedule::to_string(last_[missing])
                               : std::string("has not finished any action yet")));
}

void LocalTransport::finished(int rank, const schedule::Action& action) {
  std::lock_guard lock(mutex_);
  last_[rank] = action;
  started_[rank] = true;
}

void LocalTransport::cancel(std::exception_ptr failure) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  changed_.notify_all();
}

std::exception_ptr LocalTransport::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::string LocalTransport::missed_deadline(const Transfer& transfer) const {
  const auto& way = routes_[transfer.route];
  const bool gradient = transfer.way == Transfer::Way::Gradient;
  const int from = rank_of_stage_[gradient ? way.to_stage : way.from_stage];
  const int to = rank_of_stage_[gradient ? way.from_stage : way.to_stage];
  const std::string last = started_[from] ? "last finished " + schedule::to_string(last_[from]) +
                                                " and has not answered since"
                                          : "has not finished any action yet";
  return describe_missed_deadline(way, transfer, to, from, deadline_, last);
}

}  // namespace trestle::pipeline
