#include "trestle/comm/threads/thread_hub.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/threads/thread_collectives.h"

namespace trestle::comm {

ThreadHub::ThreadHub(std::vector<int> ranks)
    : ranks_(std::move(ranks)), called_(ranks_.size()), left_(ranks_.size()) {}

ThreadHub::Mismatch ThreadHub::difference_with(const Collective& known, int rank,
                                               const Request& request) const {
  for (std::size_t other = 0; other < known.requests.size(); ++other) {
    if (!known.requests[other]) continue;
    const Request& theirs = *known.requests[other];
    const auto mine = static_cast<std::size_t>(rank);
    auto found = other < mine
                     ? difference({theirs.print, request.print}, {ranks_[other], ranks_[mine]})
                     : difference({request.print, theirs.print}, {ranks_[mine], ranks_[other]});
    if (found) return found;
    if (request.print.kind != Kind::AllToAll) continue;
    const auto pieces = [&](const Request& from, std::size_t a, const Request& to,
                            std::size_t b) -> Mismatch {
      if (from.input_pieces[b] == to.output_pieces[a]) return {};
      return piece_difference(ranks_[a], from.input_pieces[b], ranks_[b], to.output_pieces[a]);
    };
    if (auto differs = pieces(request, mine, theirs, other)) return differs;
    if (auto differs = pieces(theirs, other, request, mine)) return differs;
  }
  return {};
}

void ThreadHub::finish(Collective& all) {
  std::vector<Request> requests;
  for (auto& request : all.requests) requests.push_back(std::move(*request));
  std::optional<Failed> failed;
  try {
    run_collective(requests);
  } catch (const std::exception& error) {
    failed =
        Failed{Failed::How::Rank, text(describe(requests[0].print), " failed: ", error.what())};
  }
  requests.clear();  // when wait() returns, no other thread may hold the caller's tensors
  for (const auto& completion : all.completions) completion->finish(failed);
}

ThreadHub::Mismatch ThreadHub::collective(int rank, Request request,
                                          std::shared_ptr<Completion> completion) {
  const auto mine = static_cast<std::size_t>(rank);
  std::optional<Collective> complete;
  Mismatch mismatch;
  std::optional<std::string> dead;
  std::optional<Failed> left;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t order = ++called_[mine];
    request.print.order = order;
    dead = dead_;
    if (!dead) left = left_by(order, rank, request);
    if (!dead && !left) {
      Collective& known = collectives_[order];
      known.requests.resize(ranks_.size());
      known.completions.resize(ranks_.size());
      mismatch = difference_with(known, rank, request);
      known.requests[mine] = std::move(request);
      known.completions[mine] = completion;
      if (!mismatch && ++known.arrived == ranks_.size()) {
        complete = std::move(known);
        collectives_.erase(order);
      }
    }
  }
  if (dead) completion->finish(Failed{Failed::How::Rank, *dead});
  if (left) completion->finish(std::move(left));
  if (complete) finish(*complete);
  return mismatch;
}

ThreadHub::Mismatch ThreadHub::message(int rank, Request request,
                                       std::shared_ptr<Completion> completion) {
  const bool sends = request.print.kind == Kind::Send;
  const int from = sends ? rank : request.peer, to = sends ? request.peer : rank;
  const auto at = [&](int group_rank) { return ranks_[static_cast<std::size_t>(group_rank)]; };
  std::optional<Message> other;
  std::optional<std::string> dead;
  std::optional<Failed> left;
  {
    const std::lock_guard lock(mutex_);
    dead = dead_;
    if (!dead) {
      const auto place = waiting_.try_emplace({from, to, request.tag}).first;
      auto& theirs = sends ? place->second.receives : place->second.sends;
      auto& own = sends ? place->second.sends : place->second.receives;
      Mismatch mismatch;
      if (!theirs.empty()) {
        const Fingerprint& print = theirs.front().request.print;
        mismatch = sends ? difference(request.print, at(from), print, at(to))
                         : difference(print, at(from), request.print, at(to));
      }
      if (theirs.empty()) left = left_by_peer(rank, request);
      if (!left && (theirs.empty() || mismatch)) {  // after a mismatch, kill() ends both waits
        own.push_back({std::move(request), std::move(completion)});
        return mismatch;
      }
      if (!left) {
        other = std::move(theirs.front());
        theirs.pop_front();
      }
      if (place->second.sends.empty() && place->second.receives.empty()) waiting_.erase(place);
    }
  }
  if (left) {
    completion->finish(std::move(left));
    return {};
  }
  if (dead) {
    completion->finish(Failed{Failed::How::Rank, *dead});
    return {};
  }
  Request& sent = sends ? request : other->request;
  Request& received = sends ? other->request : request;
  if (sent.input.nbytes() > 0)
    std::memmove(received.output.mutable_data_ptr(), sent.input.const_data_ptr(),
                 sent.input.nbytes());
  sent = received = {};
  other->completion->finish();
  completion->finish();
  return {};
}

std::optional<Failed> ThreadHub::left_by(std::uint64_t order, int rank,
                                         const Request& request) const {
  std::vector<std::size_t> gone;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (left_[r] && called_[r] < order) gone.push_back(r);
  if (gone.empty()) return {};
  return left(gone, rank, request);
}

std::optional<Failed> ThreadHub::left_by_peer(int rank, const Request& request) const {
  const auto peer = static_cast<std::size_t>(request.peer);
  if (!left_[peer]) return {};
  return left({peer}, rank, request);
}

Failed ThreadHub::left(const std::vector<std::size_t>& gone, int rank,
                       const Request& request) const {
  std::vector<int> numbers;
  for (const std::size_t r : gone) numbers.push_back(ranks_[r]);
  const bool one = gone.size() == 1;
  const std::string& status = *left_[gone[0]];
  return {Failed::How::Left,
          text(one ? "rank " : "ranks ", join(numbers, ", "), one ? " has" : " have", " returned",
               one && !status.empty() ? text(", having last reported '", status, "'") : "",
               ", but rank ", ranks_[static_cast<std::size_t>(rank)], " waits for ",
               one ? "it" : "them", " in ", describe(request.print))};
}

void ThreadHub::leave(int rank, const std::string& status) {
  std::vector<std::pair<std::shared_ptr<Completion>, Failed>> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
    if (found == ranks_.end()) return;
    const auto gone = static_cast<int>(found - ranks_.begin());
    left_[static_cast<std::size_t>(gone)] = status;
    const auto collectives_of_it = called_[static_cast<std::size_t>(gone)];
    std::erase_if(collectives_, [&](auto& entry) {
      auto& [order, known] = entry;
      if (order <= collectives_of_it) return false;
      for (std::size_t r = 0; r < known.requests.size(); ++r)
        if (known.completions[r])
          ended.emplace_back(std::move(known.completions[r]),
                             *left_by(order, static_cast<int>(r), *known.requests[r]));
      return true;
    });
    for (auto& [place, ends] : waiting_) {
      const auto [from, to, tag] = place;
      auto& awaiting = from == gone ? ends.receives : ends.sends;
      if (from != gone && to != gone) continue;
      for (Message& message : std::exchange(awaiting, {}))
        ended.emplace_back(std::move(message.completion),
                           *left_by_peer(from == gone ? to : from, message.request));
    }
  }
  for (auto& [completion, failed] : ended) completion->finish(std::move(failed));
}

void ThreadHub::kill(const std::string& reason) {
  std::vector<std::shared_ptr<Completion>> under_way;
  {
    const std::lock_guard lock(mutex_);
    if (!dead_) dead_ = reason;
    for (auto& [order, collective] : collectives_) {
      for (auto& completion : collective.completions)
        if (completion) under_way.push_back(std::move(completion));
    }
    for (auto& [place, ends] : waiting_) {
      for (auto& message : ends.sends) under_way.push_back(std::move(message.completion));
      for (auto& message : ends.receives) under_way.push_back(std::move(message.completion));
    }
    collectives_.clear();
    waiting_.clear();
  }
  for (const auto& completion : under_way) completion->finish(Failed{Failed::How::Rank, reason});
}

std::vector<int> ThreadHub::missing(std::uint64_t order) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (called_[r] < order) ranks.push_back(ranks_[r]);
  }
  return ranks;
}

std::uint64_t ThreadHub::next_order(int rank) const {
  const std::lock_guard lock(mutex_);
  return called_[static_cast<std::size_t>(rank)] + 1;
}

}  // namespace trestle::comm
