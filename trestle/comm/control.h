#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trestle::comm {

class Connection;

// A connection as those see it who may have to break it: it can go while they look.
class Breaker {
 public:
  explicit Breaker(Connection& connection) : connection_(&connection) {}
  void break_off(const std::string& reason);
  void retire();  // waits for a break_off that is under way

 private:
  std::mutex mutex_;
  Connection* connection_;
};

// The connections of a world, to be broken when it fails. They are not held, not even for a moment:
// whoever breaks them must not become their last owner.
class BreakList {
 public:
  void add(std::shared_ptr<Breaker> breaker);
  void break_all(const std::string& reason) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Breaker>> breakers_;
};

// What the ranks of a world tell each other beside their tensors: that one failed, and what each did
// last. One for each rank; may be called from every thread.
class Control {
 public:
  virtual ~Control() = default;

  // The first reason of all ranks wins; it ends all waits of all ranks, here before it returns.
  virtual void fail(const std::string& reason) = 0;
  virtual std::optional<std::string> failure() const = 0;

  virtual void say_status(std::string status) = 0;
  virtual std::string status_of(int rank) const = 0;
  // "; rank 3 said last ...", of all that give no sign of life, but for these.
  virtual std::string silent_ranks(const std::vector<int>& but) const { return ""; }

  // Something broke under a wait. Returns what to tell the user: the first failing rank's reason, else
  // what is known of the ranks that are gone. May take a moment to find out; afterwards the world has
  // failed.
  struct Broken {
    int rank = 0;                   // who waited
    std::string call;               // in what
    std::string error;              // the engine's message
    std::vector<int> awaited = {};  // for whom; all ranks are those of the world
  };
  virtual std::string explain(const Broken& broken) = 0;

  // What this rank says where it gives the reason itself: a rank that was stopped for a while says so,
  // since then it is rather the one at fault than those it waited for.
  virtual std::string own_words(std::string reason) const { return reason; }
  // The failure as this rank says it: what its waits end with.
  std::optional<std::string> failure_in_own_words() const;

  // Breaks this connection too when any rank fails, at once if one has.
  void attach(const Connection& connection);

 protected:
  const std::shared_ptr<BreakList>& breaks() const { return breaks_; }

 private:
  const std::shared_ptr<BreakList> breaks_ = std::make_shared<BreakList>();
};

// The reason of a rank (of the world) that failed, with that rank as its last line; and that rank
// again, nothing where the others found out by themselves, as of a process that was killed.
std::string reason_of_rank(const std::string& reason, int rank);
std::optional<int> rank_of_reason(const std::string& reason);

// "rank 1: 'backward of stage 1', 0.2 s ago; rank 2: ...", for a message of a deadline.
std::string statuses(const Control& control, const std::vector<int>& ranks, int but);

}  // namespace trestle::comm
