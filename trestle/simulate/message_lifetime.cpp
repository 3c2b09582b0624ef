#include "trestle/simulate/message_lifetime.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace trestle::simulate {

using schedule::Event;
using schedule::EventIndex;
using schedule::Timeline;

MessageLifetime::MessageLifetime(const Timeline& timeline, const EventIndex& index)
    : deliveries_(static_cast<std::size_t>(timeline.rank_count)) {
  for (const Event& event : timeline.events) end_ = std::max(end_, event.end);
  const auto both = [&](std::optional<std::size_t> made, std::optional<std::size_t> used) {
    if (made && used) add(timeline.events[*made], timeline.events[*used]);
  };
  for (const auto& route : timeline.routes) {
    for (int i = 0; i < index.micro_batches(); ++i) {
      both(index.forward(route.from_stage, i), index.forward(route.to_stage, i));
      both(index.backward(route.to_stage, i), index.backward(route.from_stage, i));
    }
  }
  for (auto& of_producer : deliveries_) {
    for (auto& [consumer, list] : of_producer) {
      std::sort(list.begin(), list.end(),
                [](const Delivery& a, const Delivery& b) { return a.made_from < b.made_from; });
      double earliest = end_;
      std::for_each(list.rbegin(), list.rend(), [&](Delivery& delivery) {
        earliest = delivery.used_from = std::min(earliest, delivery.used_from);
      });
    }
  }
}

void MessageLifetime::add(const Event& made, const Event& used) {
  if (made.rank != used.rank)
    deliveries_[static_cast<std::size_t>(made.rank)][used.rank].push_back({made.begin, used.begin});
}

double MessageLifetime::latest_end(const Event& taken, int sender) const {
  const auto& of_producer = deliveries_[static_cast<std::size_t>(taken.rank)];
  const auto list = of_producer.find(sender);
  if (list == of_producer.end()) return end_;
  const auto first =
      std::lower_bound(list->second.begin(), list->second.end(), taken.begin,
                       [](const Delivery& a, double time) { return a.made_from < time; });
  return first == list->second.end() ? end_ : std::max(taken.begin, first->used_from);
}

}  // namespace trestle::simulate
