#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trestle/comm/control_plane.h"
#include "trestle/comm/processes/process_identity.h"

namespace trestle::comm {

// ControlPlane through the ranks' common store. Its thread, the watcher, writes this rank's
// heartbeat there four times a second, and reads the other ranks' heartbeats, statuses and failure.
// It also checks whether the processes of this machine still run, and whether the store answers.
//
// The store of a stopped process never answers. So only the watcher talks to the store; other
// threads wait for the watcher, at most 0.6 s.
class ProcessControlPlane : public ControlPlane {
 public:
  struct Facts {
    int rank = 0;
    std::vector<ProcessIdentity> identities;  // by rank
    bool hosts_store = false;                 // this process hosts the store, so it leaves last
    bool store_of_launcher = false;
    std::chrono::milliseconds deadline{};
  };

  // `store` is a connection that only the watcher uses. `main_store`, which may host the store, is
  // kept alive until the goodbye.
  ProcessControlPlane(Facts facts, c10::intrusive_ptr<c10d::Store> store,
                      c10::intrusive_ptr<c10d::Store> main_store);
  // Publishes this rank's goodbye. The host of the store waits until all other ranks have left or
  // ended, at most until the deadline.
  ~ProcessControlPlane() override;

  void fail(const std::string& reason) override;
  std::optional<std::string> failure() const override;
  void report_status(std::string status) override;
  std::string status_of(int rank) const override;
  std::string silent_ranks(const std::vector<int>& but) const override;
  std::string explain(const Broken& broken) override;
  std::string with_stall_note(std::string reason) const override;

  // Creates this rank's keys in the store. Each rank calls it before the watchers start.
  static void prepare(c10d::Store& store, int rank);
  // Whether the rank with this number has joined the world of this store and has left it.
  static bool has_left(c10d::Store& store, int rank);
  // Whether the world of this store has failed.
  static bool has_failed(c10d::Store& store);
  // Fails the world of this store, whose rank `rank` has ended as `how` tells.
  static void report_end(c10d::Store& store, int rank, const std::string& how);

 private:
  class Watcher;
  std::string describe_broken_connection(const Broken& broken) const;

  const c10::intrusive_ptr<c10d::Store> main_store_;
  const std::shared_ptr<Watcher> watcher_;
  std::thread thread_;
};

}  // namespace trestle::comm
