#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"

// Finds the transfers that a picture draws as arrows.
namespace trestle::view {

enum class LinkKind { Activation, Gradient, Skip, SkipGradient };

// From the event that produced a value to the event that used it (indices into Timeline::events).
struct Link {
  LinkKind kind = LinkKind::Activation;
  int route = 0;  // index into Timeline::routes
  int micro_batch = 0;
  std::size_t from = 0;  // producer's F, or the consumer's B or I for a gradient
  std::size_t to = 0;    // consumer's F, or the producer's B or I for a gradient
  double departs = 0;    // seconds: the time of the SEND; within a rank the producer's end
};

// One link for each SEND event with a known route and both ends in the timeline, and one for each
// skip within a rank, which has no SEND. In the order of departure.
std::vector<Link> links(const schedule::Timeline& timeline);

}  // namespace trestle::view
