#include "trestle/view/links.h"

#include <algorithm>
#include <optional>

#include "trestle/schedule/routes.h"

namespace trestle::view {
namespace {

using schedule::Event;
using schedule::EventIndex;
using schedule::Route;
using schedule::RouteTable;
using schedule::Timeline;
using schedule::Transfer;
using Way = Transfer::Way;

class Finder {
 public:
  explicit Finder(const Timeline& timeline) : timeline_(timeline), index_(timeline) {}

  void add_sends() {
    const RouteTable table(timeline_.stages, timeline_.routes);
    for (const Event& event : timeline_.events) {
      if (!schedule::is_send(event.action.kind)) continue;
      if (const auto transfer = table.of(event.action)) add(*transfer, event.begin);
    }
  }

  void add_skips_inside_ranks() {
    for (std::size_t i = 0; i < timeline_.routes.size(); ++i) {
      const Route& route = timeline_.routes[i];
      if (!route.skip || !within_rank(timeline_.rank_of_stage, route)) continue;
      for (int micro_batch = 0; micro_batch < index_.micro_batches(); ++micro_batch) {
        add({static_cast<int>(i), micro_batch, Way::Activation}, std::nullopt);
        add({static_cast<int>(i), micro_batch, Way::Gradient}, std::nullopt);
      }
    }
  }

  std::vector<Link> take() {
    std::stable_sort(result_.begin(), result_.end(),
                     [](const Link& a, const Link& b) { return a.departs < b.departs; });
    return std::move(result_);
  }

 private:
  void add(const Transfer& transfer, std::optional<double> sent) {
    const Route& route = timeline_.routes[static_cast<std::size_t>(transfer.route)];
    const int i = transfer.micro_batch;
    const bool forward = transfer.way == Way::Activation;
    const auto from =
        forward ? index_.forward(route.from_stage, i) : index_.backward(route.to_stage, i);
    const auto to =
        forward ? index_.forward(route.to_stage, i) : index_.backward(route.from_stage, i);
    if (!from || !to) return;
    const LinkKind kind = route.skip ? (forward ? LinkKind::Skip : LinkKind::SkipGradient)
                                     : (forward ? LinkKind::Activation : LinkKind::Gradient);
    result_.push_back({.kind = kind,
                       .route = transfer.route,
                       .micro_batch = i,
                       .from = *from,
                       .to = *to,
                       .departs = sent.value_or(timeline_.events[*from].end)});
  }

  const Timeline& timeline_;
  EventIndex index_;
  std::vector<Link> result_;
};

}  // namespace

std::vector<Link> links(const Timeline& timeline) {
  Finder finder(timeline);
  finder.add_sends();
  finder.add_skips_inside_ranks();
  return finder.take();
}

}  // namespace trestle::view
