#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <string>

#include "trestle/comm/processes/wait_notice.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::comm {

// The address of the store where the ranks of one run meet: rank 0's, or the launcher's.
class StoreAddress {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::TCPStore>;
  using Time = std::chrono::steady_clock::time_point;

  // Every operation of the store takes at most `deadline`.
  StoreAddress(const launch::RankEnvironment& environment, std::chrono::milliseconds deadline);

  // Opens the store in this process. Throws RankError if the port is in use, and if this machine
  // does not have the address.
  StorePtr open(Time end) const;
  // Connects to the store and waits for it until `end`. Throws RankError. `notice` may be null.
  StorePtr connect(Time end, WaitNotice* notice = nullptr) const;

  const std::string& text() const { return text_; }  // "node0:29500"

 private:
  enum class Role { Host, Client };
  c10d::TCPStoreOptions options(Role role) const;

  std::string host_;
  int port_ = 0, rank_ = 0, world_size_ = 1;
  std::chrono::milliseconds deadline_;
  std::string text_;
};

}  // namespace trestle::comm
