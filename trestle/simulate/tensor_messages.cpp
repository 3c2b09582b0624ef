#include "trestle/simulate/tensor_messages.h"

#include <algorithm>

namespace trestle::simulate {
namespace {

using schedule::Event;
using schedule::Kind;

double exposed(const std::vector<LayerMessage>& messages) {
  double sum = 0;
  for (const LayerMessage& message : messages) sum += message.exposed();
  return sum;
}

// From `begin` on, where `computed` seconds of an action and these messages take place.
void place(const std::vector<LayerMessage>& messages, int rank, double begin, double computed,
           schedule::Timeline* timeline) {
  const double between = std::max(0.0, computed) / static_cast<double>(messages.size());
  double time = begin;
  for (const LayerMessage& message : messages) {
    time += between;
    const double hidden = std::min({message.seconds, message.beside, time - begin});
    timeline->tensor_messages.push_back({.rank = rank,
                                         .kind = message.kind,
                                         .bytes = message.bytes,
                                         .begin = time - hidden,
                                         .wait = time,
                                         .end = time + message.exposed()});
    time += message.exposed();
  }
}

}  // namespace

void set_message_times(const std::function<double(const LayerMessage&)>& seconds,
                       StageMessages* messages, StageCost* cost) {
  for (auto* list : {&messages->forward, &messages->backward})
    for (LayerMessage& message : *list) message.seconds = seconds(message);
  const double forward = exposed(messages->forward), backward = exposed(messages->backward);
  for (double StageCost::*time :
       {&StageCost::forward, &StageCost::forward_no_graph, &StageCost::recompute})
    cost->*time += forward;
  cost->backward += backward;
  cost->input_grad += backward;
}

void place_tensor_messages(schedule::Timeline* timeline, const Costs& costs) {
  if (costs.messages.empty()) return;
  for (const Event& event : timeline->events) {
    const auto& of_stage = [&](int stage) -> const StageMessages& {
      return costs.messages[static_cast<std::size_t>(stage)];
    };
    const StageMessages& own = of_stage(event.action.stage);
    const auto add = [&](const std::vector<LayerMessage>& messages, double begin, double end) {
      if (!messages.empty())
        place(messages, event.rank, begin, end - begin - exposed(messages), timeline);
    };
    switch (event.action.kind) {
      case Kind::Forward:
      case Kind::Recompute:
        add(own.forward, event.begin, event.end);
        break;
      case Kind::Backward:
      case Kind::InputGrad:
        add(own.backward, event.begin, event.end);
        break;
      case Kind::OverlapForwardBackward: {  // simulated one after the other
        const double middle =
            event.begin + costs.stages[static_cast<std::size_t>(event.action.stage)].forward;
        add(own.forward, event.begin, middle);
        add(of_stage(event.action.partner_stage).backward, middle, event.end);
        break;
      }
      default:
        break;
    }
  }
}

}  // namespace trestle::simulate
