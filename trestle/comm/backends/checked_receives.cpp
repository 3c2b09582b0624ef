#include "trestle/comm/backends/checked_receives.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>

#include "trestle/comm/backends/backend_connection.h"
#include "trestle/comm/message_tags.h"

namespace trestle::comm {

void CheckedReceives::add(Request request, std::shared_ptr<Completion> completion,
                          std::function<void()> then) {
  auto receive =
      std::make_shared<Receive>(std::move(request), std::move(completion), std::move(then));
  {
    const std::lock_guard lock(mutex_);
    posted_[receive->request.tag].push_back(receive);
  }
  thread_.add([this, receive = std::move(receive)] { serve(*receive); });
}

// Reads fingerprints until this receive has got its own. Fingerprints of other receives are matched
// or queued on the way.
void CheckedReceives::serve(Receive& receive) {
  const Fingerprint print = receive.request.print;
  try {
    while (!receive.is_taken) {
      auto& early = early_[receive.request.tag];
      Fingerprint sent;
      if (early.empty()) {
        sent = next_print();
      } else {
        sent = early.front();
        early.pop_front();
      }
      if (const auto match = take(sent.root))
        complete(*match, sent);
      else
        early_[sent.root].push_back(sent);
    }
  } catch (const std::exception& error) {
    take(receive.request.tag);
    finish(receive, connection_.failure_from(error, print, from_));
  }
}

Fingerprint CheckedReceives::next_print() {
  if (const auto reason = connection_.place().control->failure()) throw std::runtime_error(*reason);
  std::vector<at::Tensor> bytes = {
      at::empty({sizeof(Fingerprint)}, at::TensorOptions().dtype(at::kByte))};
  // No deadline here: the wait of the receive itself has one.
  constexpr auto a_year = std::chrono::hours(24 * 365);
  connection_.in_flight().wait(*connection_.cpu().recv(bytes, from_, print_tag), a_year);
  Fingerprint print;
  std::memcpy(&print, bytes[0].const_data_ptr(), sizeof print);
  return print;
}

std::shared_ptr<CheckedReceives::Receive> CheckedReceives::take(int tag) {
  const std::lock_guard lock(mutex_);
  auto& waiting = posted_[tag];
  if (waiting.empty()) return nullptr;
  auto receive = std::move(waiting.front());
  waiting.pop_front();
  receive->is_taken = true;
  return receive;
}

void CheckedReceives::finish(Receive& receive, std::optional<Failed> failed) {
  connection_.in_flight().end(receive.completion);
  receive.completion->finish(std::move(failed));
}

void CheckedReceives::complete(Receive& receive, const Fingerprint& sent) {
  const auto& place = connection_.place();
  const auto at = [&](int rank) { return place.ranks[static_cast<std::size_t>(rank)]; };
  const Fingerprint print = receive.request.print;
  if (const auto differs = difference(sent, at(from_), print, at(place.rank))) {
    finish(receive, connection_.failed(*differs));
    return;
  }
  try {
    std::vector<at::Tensor> tensors = {receive.request.output};
    if (tensors[0].numel() > 0)
      connection_.in_flight().wait(*connection_.backend_for(tensors[0])
                                        .recv(tensors, from_, checked_tag(receive.request.tag)),
                                   place.deadline);
    if (receive.then) receive.then();
    receive.request = {};
    finish(receive);
  } catch (const std::exception& error) {
    finish(receive, connection_.failure_from(error, print, from_));
  }
}

}  // namespace trestle::comm
