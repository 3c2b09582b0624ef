#include "trestle/comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/bounded.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/network.h"
#include "trestle/comm/process_control.h"
#include "trestle/comm/rank_error.h"
#include "trestle/launch/ending.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A start of the ranks may have several worlds, one after the other: in one process, or in processes
// of a script. Rank 0's store goes with its world, and who comes before it has gone waits for the next
// one. In a launcher's store each world has keys of its own.
//
// Keys: "size" is the world size and who said so; "card/R" who rank R is; "refused" why the ranks
// cannot come together; "ready" that they have.
class Arrival {
 public:
  Arrival(const launch::RankEnvironment& environment, milliseconds deadline)
      : environment_(environment),
        deadline_(deadline),
        end_(steady_clock::now() + deadline),
        place_(text(environment.address, ":", environment.port)),
        holds_store_(environment.rank == 0 && !environment.store_of_launcher) {}

  Meeting meet() {
    for (int worlds = 0;; ++worlds) {
      const auto tcp = holds_store_ ? open() : connect();
      const std::string prefix =
          text("trestle/", environment_.restart, "/", environment_.store_of_launcher ? worlds : 0);
      store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, tcp);
      if (holds_store_ || !was_here()) return meet_at(tcp, prefix);
      if (steady_clock::now() >= end_)
        throw DeadlineError(text("rank ", environment_.rank, " waited longer than ",
                                 seconds_text(deadline_), " for the world before to end at ",
                                 place_));
      if (!environment_.store_of_launcher) std::this_thread::sleep_for(milliseconds(20));
    }
  }

 private:
  // Whether this is the store of a world that this rank has left. One that breaks right now is.
  bool was_here() const {
    try {
      const auto was =
          within(left() + milliseconds(1000), [store = store_, rank = environment_.rank] {
            return ProcessControl::has_left(*store, rank);
          });
      if (was) return *was;
    } catch (const std::exception&) {
      if (!environment_.store_of_launcher) return true;
      throw;
    }
    throw RankError(text("the store at ", place_, " has stopped to answer"));
  }

  Meeting meet_at(const c10::intrusive_ptr<c10d::TCPStore>& tcp, const std::string& prefix) {
    const auto met = within(left() + milliseconds(1000),
                            [self = *this]() mutable { return self.meet_in_store(); });
    if (!met) throw RankError(text("the store at ", place_, " has stopped to answer"));
    const auto watched = within(left() + milliseconds(1000), [tcp] { return tcp->clone(); });
    if (!watched) throw RankError(text("the store at ", place_, " has stopped to answer"));
    return {store_, c10::make_intrusive<c10d::PrefixStore>(prefix, *watched), *met};
  }

  milliseconds left() const {
    return std::max(milliseconds(1),
                    std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now()));
  }

  c10d::TCPStoreOptions options(bool holds) const {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(environment_.port);
    options.isServer = holds;
    options.waitWorkers = false;
    options.numWorkers = static_cast<std::size_t>(environment_.world_size);
    options.timeout = deadline_;
    return options;
  }

  // On a socket of our own: libtorch's would be one of IPv6, for whose addresses of IPv4 its store
  // then asks a name server at each connection, before it answers. That may take seconds.
  c10::intrusive_ptr<c10d::TCPStore> open() const {
    std::string problem;
    auto own = options(true);
    own.masterListenFd = listen_at(environment_.address, environment_.port, problem);
    if (*own.masterListenFd < 0)
      throw RankError(
          text("rank 0 cannot open port ", environment_.port, ": ", problem),
          {.hint =
               "Choose another MASTER_PORT (trestle launch: --rendezvous HOST:PORT); or another "
               "run still goes on here, or two processes were told to be rank 0."});
    // Before libtorch tries, which complains at length. Who is connected waits for the store.
    if (const auto error = cannot_reach(environment_.address, environment_.port, end_)) {
      close(*own.masterListenFd);
      throw RankError(text("rank 0 cannot reach itself at ", place_, ": ", *error),
                      {.hint = "MASTER_ADDR is the name or address of rank 0's machine, the same "
                               "for all ranks (trestle launch: --rendezvous)."});
    }
    return c10::make_intrusive<c10d::TCPStore>(environment_.address, own);
  }

  c10::intrusive_ptr<c10d::TCPStore> connect() const {
    if (const auto error = cannot_reach(environment_.address, environment_.port, end_))
      throw RankError(
          text("rank ", environment_.rank, " found nobody at ", place_, " within ",
               seconds_text(deadline_), ": ", *error),
          {.hint = "Is rank 0 running, and are MASTER_ADDR and MASTER_PORT (trestle launch: "
                   "--rendezvous) its machine and port?"});
    std::string problem = "it does not answer";
    // The store of a world that ends just now may hang up; the next one is there soon.
    for (int tries = 0; tries < 20; ++tries) {
      try {
        const auto store = within(left() + milliseconds(500),
                                  [address = environment_.address, options = options(false)] {
                                    return c10::make_intrusive<c10d::TCPStore>(address, options);
                                  });
        if (store) return *store;
        break;
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (steady_clock::now() >= end_) break;
      std::this_thread::sleep_for(milliseconds(50));
    }
    throw RankError(text("what listens at ", place_,
                         " is not a store of ranks: ", problem.substr(0, problem.find('\n'))),
                    {.hint = "Another program has this port: choose another MASTER_PORT (trestle "
                             "launch: --rendezvous HOST:PORT)."});
  }

  std::vector<ProcessCard> meet_in_store() {
    try {
      agree_on_size();
      show_card();
      return wait_for_all();
    } catch (const Error&) {
      // Who holds the store stays for the others to read why.
      if (holds_store_) std::this_thread::sleep_for(milliseconds(500));
      throw;
    } catch (const std::exception& error) {
      const std::string message = error.what();
      throw RankError(text("the store at ", place_, " went away while rank ", environment_.rank,
                           " waited for the others: ", message.substr(0, message.find('\n'))));
    }
  }

  // What is refused before all are there ends the others too; a straggler must not end a run.
  [[noreturn]] void refuse(const std::string& reason) {
    if (!store_->check({"ready"})) store_->compareSet("refused", "", reason);
    throw UsageError(reason);
  }

  void agree_on_size() {
    const std::string mine = text(environment_.world_size, "\t", environment_.rank);
    const auto first = split(store_->compareSet("size", "", mine), '\t');
    if (first.size() == 2 && first[0] != std::to_string(environment_.world_size))
      refuse(text("rank ", environment_.rank, " was told that there are ", environment_.world_size,
                  " ranks, and rank ", first[1], " that there are ", first[0], " ranks"));
  }

  void show_card() {
    const ProcessCard card = own_card();
    ProcessControl::prepare(*store_, environment_.rank);
    const std::string first = store_->compareSet(card_key(environment_.rank), "", card.to_text());
    if (first == card.to_text()) return;
    const ProcessCard other = ProcessCard::from_text(first);
    refuse(text("two processes have the rank number ", environment_.rank, ": ", other.pid, " on ",
                other.host, " and ", card.pid, " on ", card.host));
  }

  static std::string card_key(int rank) { return text("card/", rank); }

  std::vector<ProcessCard> wait_for_all() {
    std::vector<int> missing;
    for (int r = 0; r < environment_.world_size; ++r) missing.push_back(r);
    for (;;) {
      if (store_->check({"refused"})) {
        const std::string reason = store_->get_to_str("refused");
        if (reason.starts_with(late_mark)) throw DeadlineError(reason.substr(1));
        throw UsageError(reason);
      }
      std::erase_if(missing, [&](int rank) { return store_->check({card_key(rank)}); });
      if (missing.empty()) break;
      if (steady_clock::now() >= end_) {
        const std::string reason =
            text(launch::ranks_in_words(missing), " of ", environment_.world_size,
                 missing.size() == 1 ? " has" : " have", " not arrived at ", place_, " within ",
                 seconds_text(deadline_));
        store_->compareSet("refused", "", late_mark + reason);
        throw DeadlineError(reason);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    store_->set("ready", "1");
    std::vector<ProcessCard> cards;
    for (int r = 0; r < environment_.world_size; ++r)
      cards.push_back(ProcessCard::from_text(store_->get_to_str(card_key(r))));
    return cards;
  }

  static constexpr const char* late_mark = "!";

  launch::RankEnvironment environment_;
  milliseconds deadline_;
  steady_clock::time_point end_;
  std::string place_;
  bool holds_store_ = false;
  StorePtr store_;
};

}  // namespace

Meeting meet(const launch::RankEnvironment& environment, milliseconds deadline) {
  return Arrival(environment, deadline).meet();
}

}  // namespace trestle::comm
