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

// Connects the ranks of one group that are threads of one process. The last rank to call a
// collective executes it; of a message's two ends the second one copies. Requests are always
// compared, since that costs nothing here.
class ThreadHub {
 public:
  explicit ThreadHub(std::vector<int> ranks);

  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // `rank` is the group's number. The completion is finished by this call or by another rank's.
  // Returns the message of a mismatch, if any; the caller then fails the world, which kills the hub
  // and so ends all waits.
  using Mismatch = std::optional<std::string>;
  Mismatch collective(int rank, Request request, std::shared_ptr<Completion> completion);
  Mismatch message(int rank, Request request, std::shared_ptr<Completion> completion);

  // The world's rank `rank`, if it is in the group, will post no more requests. Requests that need
  // it end with Failed::Left; requests that it has posted remain. `status` is its last status, for
  // the messages.
  void leave(int rank, const std::string& status);

  // Everything in flight, and every later request, fails with this reason. The first reason wins.
  void kill(const std::string& reason);

  // The world's ranks that have not called this collective yet.
  std::vector<int> missing(std::uint64_t order) const;

  // The order number of this rank's next collective.
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
  // The failure of a request that needs ranks which have left. The caller holds the lock.
  std::optional<Failed> left_by(std::uint64_t order, int rank, const Request& request) const;
  std::optional<Failed> left_by_peer(int rank, const Request& request) const;
  Failed left(const std::vector<std::size_t>& gone, int rank, const Request& request) const;

  const std::vector<int> ranks_;
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> called_;                  // number of collectives, by rank
  std::vector<std::optional<std::string>> left_;       // last status, by rank; set once it has left
  std::map<std::uint64_t, Collective> collectives_;    // by order number; some ranks have called
  std::map<std::tuple<int, int, int>, Ends> waiting_;  // from, to, tag
  std::optional<std::string> dead_;
};

}  // namespace trestle::comm
