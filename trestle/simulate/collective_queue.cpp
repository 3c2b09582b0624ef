#include "trestle/simulate/collective_queue.h"

#include <algorithm>

namespace trestle::simulate {

std::size_t CollectiveQueue::add(const Collective& cost, int stage, Kind kind,
                                 const schedule::Action& what, int rank) {
  jobs_.push_back({.cost = cost, .queue = {stage, kind}, .what = what, .rank = rank});
  return jobs_.size() - 1;
}

void CollectiveQueue::begin(std::size_t number) {
  auto& queue = queues_[jobs_[number].queue];
  queue.push_back(number);
  if (queue.size() == 1) start(number);
}

// The messages that it waits for before the last ones leave the port free.
void CollectiveQueue::start(std::size_t number) {
  const Job& job = jobs_[number];
  const auto& hosts = network_.stages[static_cast<std::size_t>(job.queue.first)].hosts;
  const bool crosses = hosts.size() > 1;
  const double latencies = crosses ? job.cost.latencies : 0;
  const double last = std::min(latencies, 1.0);
  const double latency = network_.link.latency;
  events_.at(events_.now() + job.cost.seconds + (latencies - last) * latency,
             [this, number, crosses, last, latency, &hosts] {
               const Job& own = jobs_[number];
               double end = events_.now();
               if (crosses && own.cost.bytes > 0) {
                 std::vector<PortLoad> loads;
                 const double bytes = own.cost.bytes / network_.link.both_ways;
                 for (const int host : hosts)
                   loads.push_back({.host = host, .sent = bytes, .received = bytes});
                 end = ports_.hold(loads, end, own.what, own.rank);
               }
               events_.at(end + last * latency, [this, number] { this->end(number); });
             });
}

void CollectiveQueue::end(std::size_t number) {
  Job& job = jobs_[number];
  job.done = true;
  auto& queue = queues_[job.queue];
  queue.pop_front();
  if (!queue.empty()) start(queue.front());
  if (job.awaited) wake_(job.rank);
}

bool CollectiveQueue::is_done(std::size_t number) {
  Job& job = jobs_[number];
  job.awaited = !job.done;
  return job.done;
}

}  // namespace trestle::simulate
