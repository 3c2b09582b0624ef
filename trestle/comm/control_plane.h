#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/connection_aborter.h"

namespace trestle::comm {

// The channel beside the tensors, by which the ranks of a world share the first failure and each
// rank's last status. One object a rank; any thread may call it.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  // Fails the world. The first reason of all ranks wins. All waits of all ranks end, those of this
  // rank before fail() returns.
  virtual void fail(const std::string& reason) = 0;
  virtual std::optional<std::string> failure() const = 0;

  virtual void report_status(std::string status) = 0;
  virtual std::string status_of(int rank) const = 0;
  // "; rank 3 last reported ...", for each rank without a heartbeat that is not in `but`.
  virtual std::string silent_ranks(const std::vector<int>& but) const { return ""; }

  // A connection broke during a wait. Returns the message for the user: the reason of the first
  // rank that failed, else what is known of the ranks that are gone. May take up to 0.6 s to find
  // out. The world has failed when it returns.
  struct Broken {
    int rank = 0;                   // the rank that waited
    std::string call;               // the call that it waited in
    std::string error;              // the backend's message
    std::vector<int> awaited = {};  // the ranks that it waited for; all numbers are the world's
  };
  virtual std::string explain(const Broken& broken) = 0;

  // Puts before a reason how long this process was stopped, if that was just now: it is then more
  // likely at fault than the ranks that it waited for.
  virtual std::string with_stall_note(std::string reason) const { return reason; }
  // The failure with that note: the message that this rank's waits end with.
  std::optional<std::string> failure_with_stall_note() const;

  // Aborts this connection when any rank fails, and at once if one has failed.
  void attach(const Connection& connection);

 protected:
  const std::shared_ptr<AbortList>& abort_list() const { return abort_list_; }

 private:
  const std::shared_ptr<AbortList> abort_list_ = std::make_shared<AbortList>();
};

// Appends a line with the world's number of the rank that failed. rank_of_reason() reads it back,
// and returns nothing where the other ranks detected the failure, as of a process that was killed.
std::string reason_of_rank(const std::string& reason, int rank);
std::optional<int> rank_of_reason(const std::string& reason);

// "last reported 'backward of stage 1' 0.2 s ago".
std::string describe_status(const std::string& status, std::chrono::milliseconds age);

// "rank 1: last reported 'backward of stage 1' 0.2 s ago; rank 2: ...", for a deadline's message.
std::string statuses(const ControlPlane& control, const std::vector<int>& ranks, int but);

}  // namespace trestle::comm
