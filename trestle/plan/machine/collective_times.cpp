#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/machine/machine.h"

namespace trestle::plan {
namespace {

double inside_node(const Machine& machine, double bytes, int ranks) {
  if (ranks <= 1) return 0;
  for (const CollectiveTable& table : machine.all_reduce)
    if (table.ranks >= ranks && !table.bytes.empty())
      return time_at(table.bytes, table.seconds, bytes);
  const double rounds = 2.0 * (ranks - 1);
  return rounds * machine.inside.latency.value +
         rounds / ranks * bytes / machine.inside.bandwidth.value;
}

}  // namespace

double all_reduce_seconds(const Machine& machine, double bytes, const GroupPlace& place) {
  if (place.per_node < 1 || place.ranks < 1)
    throw UsageError(text("a collective needs at least one rank and one of them per node; it has ",
                          place.ranks, " and ", place.per_node));
  const int per_node = std::min(place.per_node, place.ranks);
  const double inside = inside_node(machine, bytes, per_node);
  if (place.ranks <= per_node) return inside;
  const int nodes = (place.ranks + per_node - 1) / per_node;
  const double rounds = 2.0 * (nodes - 1);
  return inside + rounds * machine.between.latency.value +
         rounds / nodes * bytes * place.sharing / machine.between.bandwidth.value;
}

double gather_seconds(const Machine& machine, double bytes, const GroupPlace& place) {
  return all_reduce_seconds(machine, bytes, place) / 2;
}

double message_seconds(const Machine& machine, double bytes, const MessagePath& path) {
  const LinkFigures& link = path.reach == Reach::Inside ? machine.inside : machine.between;
  const double sharing = path.reach == Reach::Inside ? 1 : path.senders;
  return link.latency.value + bytes * sharing / link.bandwidth.value;
}

}  // namespace trestle::plan
