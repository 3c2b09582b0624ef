#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"

// Who handed what to whom: the arrows of a picture.
namespace trestle::view {

enum class LinkKind { Activation, Gradient, Skip, SkipGradient };

// From the event that made something to the event that took it (indices into Timeline::events).
struct Link {
  LinkKind kind = LinkKind::Activation;
  int route = 0;  // index into Timeline::routes
  int micro_batch = 0;
  std::size_t from = 0;  // producer's F, or the consumer's B or I for a gradient
  std::size_t to = 0;    // consumer's F, or the producer's B or I for a gradient
  double departs = 0;    // seconds: when it was sent; the producer's end where it stays on the rank
};

// One link for each SEND event whose route and two ends are in the timeline, and one for each skip
// that stays on its rank (which no SEND stands for). In the order of departure.
std::vector<Link> links(const schedule::Timeline& timeline);

}  // namespace trestle::view
