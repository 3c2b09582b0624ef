#include "trestle/view/labels.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {

using schedule::Action;
using schedule::Event;
using schedule::Kind;

std::string kind_letter(Kind kind) {
  switch (kind) {
    case Kind::Forward:
      return "F";
    case Kind::Backward:
      return "B";
    case Kind::InputGrad:
      return "I";
    case Kind::WeightGrad:
      return "W";
    case Kind::Recompute:
      return "R";
    case Kind::OverlapForwardBackward:
      return "O";
    case Kind::Unshard:
      return "U";
    case Kind::Reshard:
      return "S";
    case Kind::ReduceGrad:
      return "G";
    case Kind::Norm:
      return "N";
    case Kind::Step:
      return "P";
    default:
      return ">";
  }
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::Forward:
      return "forward";
    case Kind::Backward:
      return "backward";
    case Kind::InputGrad:
      return "input gradient";
    case Kind::WeightGrad:
      return "weight gradient";
    case Kind::Recompute:
      return "recompute";
    case Kind::OverlapForwardBackward:
      return "forward + backward";
    case Kind::Unshard:
      return "unshard";
    case Kind::Reshard:
      return "reshard";
    case Kind::ReduceGrad:
      return "reduce gradients";
    case Kind::Norm:
      return "gradient norm";
    case Kind::Step:
      return "optimizer step";
    case Kind::SendActivation:
      return "send activation";
    case Kind::RecvActivation:
      return "receive activation";
    case Kind::SendGradient:
      return "send gradient";
    case Kind::RecvGradient:
      return "receive gradient";
    case Kind::SendSkip:
      return "send skip";
    case Kind::RecvSkip:
      return "receive skip";
    case Kind::SendSkipGradient:
      return "send skip gradient";
    case Kind::RecvSkipGradient:
      return "receive skip gradient";
  }
  return "?";
}

std::string grid_label(const Action& action) {
  switch (action.kind) {
    case Kind::Forward:
    case Kind::Backward:
    case Kind::InputGrad:
    case Kind::WeightGrad:
    case Kind::Recompute:
      return text(action.stage, kind_letter(action.kind), action.micro_batch);
    case Kind::OverlapForwardBackward:
      return text(action.stage, "F", action.micro_batch, "+", action.partner_stage, "B",
                  action.partner_micro_batch);
    case Kind::Unshard:
      return text(action.stage, "UN");
    case Kind::Reshard:
      return text(action.stage, "RE");
    case Kind::ReduceGrad:
      return text(action.stage, "RG");
    case Kind::Norm:
      return "NRM";
    case Kind::Step:
      return "STP";
    default:
      return schedule::to_string(action);
  }
}

std::string cell_label(const Action& action) {
  switch (action.kind) {
    case Kind::OverlapForwardBackward:
      return text(action.micro_batch, "+", action.partner_micro_batch);
    case Kind::Unshard:
      return "unshard";
    case Kind::Reshard:
      return "reshard";
    case Kind::ReduceGrad:
      return "reduce";
    case Kind::Norm:
      return "norm";
    case Kind::Step:
      return "step";
    default:
      return text(action.micro_batch);
  }
}

bool takes_rank(const Event& event) {
  return event.end > event.begin && !schedule::is_send(event.action.kind) &&
         !schedule::is_receive(event.action.kind);
}

std::size_t cell_count(const std::vector<schedule::Timeline>& timelines) {
  std::size_t cells = 0;
  for (const auto& timeline : timelines) {
    cells += static_cast<std::size_t>(
        std::count_if(timeline.events.begin(), timeline.events.end(), takes_rank));
  }
  return cells;
}

void check_size(const std::vector<schedule::Timeline>& timelines) {
  check_size(cell_count(timelines));
}

void check_size(std::size_t cells) {
  if (cells <= most_cells) return;
  throw UsageError(
      text("a picture of ", cells, " cells is too large: at most ", most_cells, " can be drawn"),
      {.hint = "Write the table as CSV (or, up to a million events, as a Chrome trace), or draw "
               "fewer stages or micro-batches."});
}

std::string percent(double share) { return decimal(share * 100, 1) + " %"; }

}  // namespace trestle::view
