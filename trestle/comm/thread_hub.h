#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trestle/comm/completion.h"
#include "trestle/comm/request.h"

namespace trestle::comm {

// Where the ranks of one group meet that are threads of one process. Whoever comes last to a
// collective carries it out, in the order of ranks; of two ends of a message the second one copies.
// Requests are always compared, since here it costs nothing.
class ThreadHub {
 public:
  explicit ThreadHub(std::vector<int> ranks);

  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // `rank` is of the group. The completion is finished here or by another rank's call. Returns what
  // differs, where it does: the caller tells the world, which kills the hub and so ends both waits.
  using Mismatch = std::optional<std::string>;
  Mismatch collective(int rank, Request request, std::shared_ptr<Completion> completion);
  Mismatch message(int rank, Request request, std::shared_ptr<Completion> completion);

  // `rank` of the world, if it is of the group, posts nothing more: what needs it ends with Failed::Left,
  // what it has posted stands. `status`: what it said last, for their messages.
  void leave(int rank, const std::string& status);

  // Everything under way, and everything that comes later, fails with this. The first reason counts.
  void kill(const std::string& reason);

  // Ranks of the world that have not come to this collective, in words: "rank 2 and rank 3".
  std::vector<int> missing(std::uint64_t order) const;

  // The number that this rank's next collective will have.
  std::uint64_t next_order(int rank) const;

 private:
  struct Collective {
    std::vector<std::optional<Request>> requests;
    std::vector<std::shared_ptr<Completion>> completions;
    std::size_t arrived = 0;
  };
  struct Message {
    Request request;
    std::shared_ptr<Completion> completion;
  };
  struct Ends {
    std::deque<Message> sends, receives;
  };

  Mismatch difference_with(const Collective& known, int rank, const Request& request) const;
  static void finish(Collective& all);
  // What a request that needs ranks which have left fails with. The caller holds the lock.
  std::optional<Failed> left_by(std::uint64_t order, int rank, const Request& request) const;
  std::optional<Failed> left_by_peer(int rank, const Request& request) const;
  Failed left(const std::vector<std::size_t>& gone, int rank, const Request& request) const;

  const std::vector<int> ranks_;
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> called_;                  // collectives, by each rank
  std::vector<std::optional<std::string>> left_;       // with which status, by rank of the group
  std::map<std::uint64_t, Collective> collectives_;    // by number: some ranks have come
  std::map<std::tuple<int, int, int>, Ends> waiting_;  // from, to, tag
  std::optional<std::string> dead_;
};

}  // namespace trestle::comm
