#include "trestle/view/links.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace trestle::view {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::Kind;
using schedule::Route;
using schedule::Timeline;

// Where each stage's forward and backward of each micro-batch stand among the events.
class Index {
 public:
  explicit Index(const Timeline& timeline) {
    for (std::size_t i = 0; i < timeline.events.size(); ++i) {
      const Action& action = timeline.events[i].action;
      switch (action.kind) {
        case Kind::Forward:
          add(Way::Forward, action.stage, action.micro_batch, i);
          break;
        case Kind::Backward:
        case Kind::InputGrad:
          add(Way::Backward, action.stage, action.micro_batch, i);
          break;
        case Kind::OverlapForwardBackward:
          add(Way::Forward, action.stage, action.micro_batch, i);
          add(Way::Backward, action.partner_stage, action.partner_micro_batch, i);
          break;
        default:
          break;
      }
    }
  }

  enum class Way { Forward, Backward };

  std::optional<std::size_t> find(Way way, int stage, int micro_batch) const {
    const auto found = events_.find({way, stage, micro_batch});
    if (found == events_.end()) return std::nullopt;
    return found->second;
  }

 private:
  void add(Way way, int stage, int micro_batch, std::size_t event) {
    events_.emplace(std::tuple{way, stage, micro_batch}, event);
  }
  std::map<std::tuple<Way, int, int>, std::size_t> events_;
};

class Finder {
 public:
  explicit Finder(const Timeline& timeline) : timeline_(timeline), index_(timeline) {}

  // A forward link from one stage to another, or the gradient's way back.
  void add(LinkKind kind, int route, int micro_batch, int from, int to,
           std::optional<double> sent) {
    const bool forward = kind == LinkKind::Activation || kind == LinkKind::Skip;
    const auto way = forward ? Index::Way::Forward : Index::Way::Backward;
    const auto producer = index_.find(way, from, micro_batch);
    const auto consumer = index_.find(way, to, micro_batch);
    if (!producer || !consumer) return;
    result_.push_back({.kind = kind,
                       .route = route,
                       .micro_batch = micro_batch,
                       .from = *producer,
                       .to = *consumer,
                       .departs = sent.value_or(timeline_.events[*producer].end)});
  }

  void add_send(const Event& event) {
    const Action& action = event.action;
    const bool has_route =
        action.route >= 0 && action.route < static_cast<int>(timeline_.routes.size());
    const Route route = has_route ? timeline_.routes[action.route] : Route{};
    switch (action.kind) {
      case Kind::SendActivation:
        return add(LinkKind::Activation, action.route, action.micro_batch, action.stage,
                   has_route ? route.to_stage : action.stage + 1, event.begin);
      case Kind::SendGradient:
        return add(LinkKind::Gradient, action.route, action.micro_batch, action.stage,
                   has_route ? route.from_stage : action.stage - 1, event.begin);
      case Kind::SendSkip:
        if (!has_route) return;
        return add(LinkKind::Skip, action.route, action.micro_batch, route.from_stage,
                   route.to_stage, event.begin);
      case Kind::SendSkipGradient:
        if (!has_route) return;
        return add(LinkKind::SkipGradient, action.route, action.micro_batch, route.to_stage,
                   route.from_stage, event.begin);
      default:
        return;
    }
  }

  void add_skips_inside_ranks() {
    const auto rank_of = [&](int stage) {
      const bool known = stage >= 0 && stage < static_cast<int>(timeline_.rank_of_stage.size());
      return known ? timeline_.rank_of_stage[stage] : -1;
    };
    for (std::size_t i = 0; i < timeline_.routes.size(); ++i) {
      const Route& route = timeline_.routes[i];
      if (!route.skip || rank_of(route.from_stage) < 0 ||
          rank_of(route.from_stage) != rank_of(route.to_stage)) {
        continue;
      }
      for (const Event& event : timeline_.events) {
        const Action& action = event.action;
        if (action.kind != Kind::Forward || action.stage != route.from_stage) continue;
        const int index = static_cast<int>(i);
        add(LinkKind::Skip, index, action.micro_batch, route.from_stage, route.to_stage,
            std::nullopt);
        add(LinkKind::SkipGradient, index, action.micro_batch, route.to_stage, route.from_stage,
            std::nullopt);
      }
    }
  }

  std::vector<Link> take() {
    std::stable_sort(result_.begin(), result_.end(),
                     [](const Link& a, const Link& b) { return a.departs < b.departs; });
    return std::move(result_);
  }

 private:
  const Timeline& timeline_;
  Index index_;
  std::vector<Link> result_;
};

}  // namespace

std::vector<Link> links(const Timeline& timeline) {
  Finder finder(timeline);
  for (const Event& event : timeline.events) {
    if (schedule::is_send(event.action.kind)) finder.add_send(event);
  }
  finder.add_skips_inside_ranks();
  return finder.take();
}

}  // namespace trestle::view
