#pragma once

#include <map>

#include "trestle/schedule/routes.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/waiting.h"

namespace trestle::simulate {

// How long a message between ranks may wait on either side, whatever the timing (Transport::Ahead).
//
// A sender lets go of messages in the order in which it sent them: of none before those that went
// earlier have been taken. A receiver has at most two messages that it has not asked for yet, so one
// may be there as soon as the one two before it, in the order in which they are taken, has been.
class Ahead {
 public:
  Ahead(const schedule::Timeline& timeline, const schedule::EventIndex& index,
        const Waiting& waiting);

  struct Held {
    double sender_until = 0;
    double receiver_from = 0;
  };
  // Null for what stays within its rank.
  const Held* find(const schedule::Transfer& transfer) const;

 private:
  std::map<schedule::Transfer, Held> held_;
};

}  // namespace trestle::simulate
