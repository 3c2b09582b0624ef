#pragma once

#include <map>
#include <vector>

#include "trestle/schedule/timeline.h"

namespace trestle::simulate {

// How long a message may stay on its sender's side, whatever the timing: until the sender's rank
// begins the first action that uses something that the receiver's rank produced in the consuming
// action or later. Only direct transfers between the two ranks are considered, so the result may be
// later than necessary, never too early.
class MessageLifetime {
 public:
  MessageLifetime(const schedule::Timeline& timeline, const schedule::EventIndex& index);

  // The latest time at which the message that `taken` consumes may still be on rank `sender`; the
  // end of the timeline if nothing bounds it earlier.
  double latest_end(const schedule::Event& taken, int sender) const;

 private:
  // A value that one rank produced and another used.
  struct Delivery {
    double made_from = 0;  // begin of the producing action
    double used_from = 0;  // begin of the consuming action
  };

  void add(const schedule::Event& made, const schedule::Event& used);

  double end_ = 0;
  // [producing rank][consuming rank], in the order of production. used_from is then the minimum
  // over this and all later deliveries.
  std::vector<std::map<int, std::vector<Delivery>>> deliveries_;
};

}  // namespace trestle::simulate
