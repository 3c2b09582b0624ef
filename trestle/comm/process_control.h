#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trestle/comm/control.h"
#include "trestle/comm/process_card.h"

namespace trestle::comm {

// Control over the ranks' common store. A thread, the watcher, shows this rank's sign of life there
// four times a second and reads the others': what each said last, whether one failed. It also looks
// whether the processes on this machine still run, and whether the store does.
//
// The store of a stopped process never answers, so only the watcher speaks with it; everybody else
// waits for the watcher, and not for long.
class ProcessControl : public Control {
 public:
  struct Facts {
    int rank = 0;
    std::vector<ProcessCard> cards;  // of all ranks
    bool holds_store = false;        // this process does: it goes last
    bool store_of_launcher = false;
    std::chrono::milliseconds deadline{};
  };

  // `store` is a connection of its own, to be used by nobody else. `main_store`, which may hold the
  // store of all, is kept until the goodbye.
  ProcessControl(Facts facts, c10::intrusive_ptr<c10d::Store> store,
                 c10::intrusive_ptr<c10d::Store> main_store);
  // Says goodbye. Who holds the store waits until all others have, or have ended, or the deadline
  // passes.
  ~ProcessControl() override;

  void fail(const std::string& reason) override;
  std::optional<std::string> failure() const override;
  void say_status(std::string status) override;
  std::string status_of(int rank) const override;
  std::string silent_ranks(const std::vector<int>& but) const override;
  std::string explain(const Broken& broken) override;
  std::string own_words(std::string reason) const override;

  // The keys' names, for who makes them: each rank does before the watchers begin.
  static void prepare(c10d::Store& store, int rank);
  // Whether a rank of this number has been in a world with these keys, and has said goodbye.
  static bool has_left(c10d::Store& store, int rank);

 private:
  class Watcher;

  const c10::intrusive_ptr<c10d::Store> main_store_;
  const std::shared_ptr<Watcher> watcher_;
  std::thread thread_;
};

}  // namespace trestle::comm
