#include "trestle/comm/threads/thread_connection.h"

#include "trestle/base/text.h"
#include "trestle/comm/message_tags.h"

namespace trestle::comm {

std::shared_ptr<Completion> collective_completion(const Connection::Place& place,
                                                  const std::shared_ptr<ThreadHub>& hub,
                                                  const Request& request) {
  Fingerprint print = request.print;
  print.order = hub->next_order(place.rank);
  const int self = place.ranks[static_cast<std::size_t>(place.rank)];
  auto late = [=, control = place.control] {
    return text("rank ", self, " in ", describe(print), ", which these ranks have not called: ",
                statuses(*control, hub->missing(print.order), self));
  };
  return std::make_shared<Completion>(place.control, place.deadline, std::move(late));
}

std::shared_ptr<Completion> message_completion(const Connection::Place& place,
                                               const Request& request) {
  const int self = place.ranks[static_cast<std::size_t>(place.rank)];
  const int peer = place.ranks[static_cast<std::size_t>(request.peer)];
  auto late = [=, print = request.print, control = place.control] {
    return text("rank ", self, " in ", describe(print),
                print.kind == Kind::Send ? " to rank " : " from rank ", peer, "; rank ", peer, " ",
                control->status_of(peer));
  };
  return std::make_shared<Completion>(place.control, place.deadline, std::move(late));
}

Work ThreadConnection::collective(Request request, Check) {
  auto completion = collective_completion(place(), hub_, request);
  if (const auto mismatch = hub_->collective(place().rank, std::move(request), completion))
    place().control->fail(*mismatch);
  return Work(std::move(completion));
}

// As between processes, a message with a check never matches one without. A pipeline sends without
// checks, so a user's messages on the same group may use any tag.
Work ThreadConnection::message(Request request, Check check) {
  auto completion = message_completion(place(), request);
  request.tag = check == Check::On ? checked_tag(request.tag) : plain_tag(request.tag);
  if (const auto mismatch = hub_->message(place().rank, std::move(request), completion))
    place().control->fail(*mismatch);
  return Work(std::move(completion));
}

}  // namespace trestle::comm
