#pragma once

#include <map>

#include "trestle/schedule/routes.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/message_lifetime.h"

namespace trestle::simulate {

// How long a message between ranks may stay in memory on either side, whatever the timing
// (TransferMode::Prefetch).
//
// A sender frees messages in the order in which it sent them, so a message stays until all earlier
// ones have been received. A receiver fetches at most two messages ahead, so a message may arrive
// as soon as the one two before it, in the order of use, has been used.
class PrefetchedMessages {
 public:
  PrefetchedMessages(const schedule::Timeline& timeline, const schedule::EventIndex& index,
                     const MessageLifetime& lifetime);

  struct Held {
    double sender_until = 0;
    double receiver_from = 0;
  };
  // Null for a message that stays within its rank.
  const Held* find(const schedule::Transfer& transfer) const;

 private:
  std::map<schedule::Transfer, Held> held_;
};

}  // namespace trestle::simulate
