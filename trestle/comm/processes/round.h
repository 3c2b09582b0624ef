#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/comm/processes/process_identity.h"
#include "trestle/comm/processes/wait_notice.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::comm {

inline constexpr const char* number_of_machine_hint =
    "Give each machine its own number (trestle launch: --node-rank, from 0).";

// One meeting of all ranks in their store, which becomes one world. Rank 0 opens a round and raises
// the store's number of it; every other rank joins the round with the highest number. A store that
// outlives a restart, such as torchrun's, holds several rounds; so does a store that serves several
// worlds, one after another. A round takes no rank once its world exists, has failed or has ended.
//
// Keys of the store: "trestle/round": the highest number. Under "trestle/NUMBER/":
// - "size": the world size, and which rank set it;
// - "card/R": the process that has the rank number R; "here/R": the same, once it is ready;
// - "waits/R": a counter that this process raises while it waits;
// - "refused": why there will be no world; "told/R": rank R has read it;
// - "world": the cards of all ranks, which rank 0 writes once all are there; then it exists;
// - "end": why the ranks of another machine will not be started again (NewsForMachines);
// - the keys of the world (ProcessControlPlane).
class Round {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A process that takes part.
  struct Card {
    ProcessIdentity identity;
    int restart = 0;  // how many times its launcher has restarted it
    // The address of rank 0's machine as this process sees it; empty if that is its own machine's.
    std::string address_of_rank_zero = {};

    std::string to_text() const;
    static Card from_text(const std::string& words);
  };

  // Opens the next round; only rank 0 calls it.
  static std::int64_t open(c10d::Store& store);
  // The number of the latest round; 0 if rank 0 has opened none.
  static std::int64_t latest(c10d::Store& store);

  Round(c10::intrusive_ptr<c10d::Store> store, std::int64_t number,
        const launch::RankEnvironment& environment, std::string place);

  // Whether this rank may join: the round has no world yet. If the round's world has lost this
  // rank's previous process, its other ranks are told. Throws UsageError if this rank number is
  // taken by a process that runs; throws what the round was refused for.
  bool is_open();

  // Joins, and waits for all ranks. Returns nothing if rank 0 has opened a newer round meanwhile.
  // Throws UsageError for a rank number that two processes have and for different world sizes,
  // DeadlineError, with the missing ranks, at `end`; all waiting ranks throw these.
  std::optional<std::vector<Card>> meet(Time end, std::chrono::milliseconds deadline,
                                        WaitNotice& notice);

  // Refuses this round, because this rank cannot start: all waiting ranks throw the error. Returns
  // false if the round has a world, and is thus an earlier one.
  bool refuse_start(const Error& error);

  // Waits until the ranks from `first` on have read why there will be no world, at most for `most`,
  // because some may come late or never. Returns whether they have.
  bool wait_until_told(int first, std::chrono::milliseconds most);
  // The same for rank 0 after an error, if it hosts the store. Notes to the launcher if it need not
  // tell them too.
  void settle(int first, std::chrono::milliseconds most);

  // How long a store tells ranks that come late why no world begins.
  static constexpr std::chrono::milliseconds time_for_latecomers{3000};

  // Tells the ranks of this round news of another machine. Returns false if the round has failed
  // before: its ranks may not read it any more, but may meet in another round.
  bool take(const launch::NewsForMachines& news);

  // The part of the store that belongs to this round.
  static std::string prefix(std::int64_t number);

 private:
  void agree_on_size();
  void publish_card();
  bool is_alive(const Card& other, const char* counter);
  [[noreturn]] void refuse_second_process(const Card& first);
  [[noreturn]] void raise_end(const std::string& reason);
  [[noreturn]] void raise(const std::string& refusal);
  [[noreturn]] void refuse(const char* kind, const std::string& reason);
  void note_told();
  std::optional<std::vector<Card>> read_world(const std::string& world);
  const std::vector<int>& missing();
  void declare_world();
  c10::intrusive_ptr<c10d::Store> part_of_store() const;
  std::string key(const char* name) const;
  std::string key(const char* name, int rank) const;
  std::string value(const std::string& key) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::int64_t number_;
  const launch::RankEnvironment environment_;
  const std::string place_;
  const Card own_;
  std::vector<int> missing_;
};

}  // namespace trestle::comm
