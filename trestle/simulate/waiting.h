#pragma once

#include <map>
#include <utility>
#include <vector>

#include "trestle/schedule/timeline.h"

namespace trestle::simulate {

// How long a message may wait on its sender's side, whatever the timing: until the sender's rank
// begins the first action that uses something the receiver's rank made in the taking action or
// later. Only what passes directly between the two ranks is looked at, so the answer may be later
// than need be, never earlier.
class Waiting {
 public:
  Waiting(const schedule::Timeline& timeline, const schedule::EventIndex& index);

  // Until when a message that `taken` takes may be on rank `sender`; the end of the timeline where
  // nothing tells before.
  double latest(const schedule::Event& taken, int sender) const;

 private:
  // Something made on one rank and used on another.
  struct Delivery {
    double made_from = 0;  // when the action that made it began
    double used_from = 0;  // when the action that used it began
  };

  void add(const schedule::Event& made, const schedule::Event& used);

  double end_ = 0;
  // By the ranks that made and used them, in order of making; used_from is then the earliest of this
  // and all later ones.
  std::map<std::pair<int, int>, std::vector<Delivery>> deliveries_;
};

}  // namespace trestle::simulate
