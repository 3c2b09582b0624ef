#include "trestle/comm/processes/rendezvous.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/processes/call_with_timeout.h"
#include "trestle/comm/processes/round.h"
#include "trestle/comm/processes/store_address.h"
#include "trestle/comm/rank_error.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using StorePtr = StoreAddress::StorePtr;

// The round that a rank has joined.
struct Met {
  std::int64_t round = 0;
  std::vector<Round::Card> cards;
};

// The ranks may meet several times: after a restart, and for several worlds one after another, in
// one process or in processes of a script. Rank 0's store is destroyed with its world. A rank that
// arrives before that waits for the next store, and in a launcher's store for the next round.
class Arrival {
 public:
  Arrival(const launch::RankEnvironment& environment, milliseconds deadline)
      : environment_(environment),
        deadline_(deadline),
        end_(steady_clock::now() + deadline),
        address_(environment, deadline),
        hosts_store_(environment.rank == 0 && !environment.store_of_launcher),
        notice_(std::make_shared<WaitNotice>(environment, deadline)) {}

  Rendezvous arrive() {
    for (;;) {
      const StorePtr store =
          hosts_store_ ? address_.open(end_) : address_.connect(end_, notice_.get());
      const auto met = call_with_timeout(left() + milliseconds(1000),
                                         [self = *this, store] { return self.meet(store); });
      if (!met) throw no_answer();
      if (*met) return rendezvous_of(store, **met);
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

 private:
  RankError no_answer() const {
    return RankError(text("the store at ", address_.text(), " no longer answers"));
  }

  milliseconds left() const {
    return std::max(milliseconds(1),
                    std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now()));
  }

  // Returns nothing if the store closes, and rank 0 may open another one.
  std::optional<Met> meet(const StorePtr& store) const {
    bool has_arrived = false;
    std::optional<Round> round;
    try {
      for (std::int64_t past = 0;;) {
        const std::int64_t number =
            environment_.rank == 0 ? Round::open(*store) : next_round(*store, past);
        round.emplace(store, number, environment_, address_.text());
        if (environment_.rank == 0 || round->is_open()) {
          has_arrived = true;
          if (auto cards = round->meet(end_, deadline_, *notice_))
            return Met{number, std::move(*cards)};
          has_arrived = false;
        }
        past = number;
      }
    } catch (const DeadlineError&) {  // the ranks that are late will not be told
      if (hosts_store_ && round) round->settle(1, milliseconds(500));
      throw;
    } catch (const Error&) {
      if (hosts_store_ && round) round->settle(1, Round::time_for_latecomers);
      throw;
    } catch (const std::exception& error) {
      const bool may_open_again =
          environment_.rank != 0 && !environment_.store_of_launcher && steady_clock::now() < end_;
      if (may_open_again && (!has_arrived || environment_.max_restarts > 0)) return {};
      const std::string message = error.what();
      throw RankError(
          text("the store at ", address_.text(), " closed while rank ", environment_.rank,
               " waited for the other ranks: ", message.substr(0, message.find('\n'))),
          {.hint = environment_.rank == 0 ? number_of_machine_hint : ""});
    }
  }

  // Waits for a round after `past`.
  std::int64_t next_round(c10d::Store& store, std::int64_t past) const {
    for (;;) {
      const std::int64_t latest = Round::latest(store);
      if (latest > past) return latest;
      if (steady_clock::now() >= end_)
        throw DeadlineError(
            past == 0 ? text("rank 0 of ", environment_.world_size, " has not arrived at ",
                             address_.text(), " within ", seconds_text(deadline_))
                      : text("rank ", environment_.rank, " waited longer than ",
                             seconds_text(deadline_), " for the previous world at ",
                             address_.text(), " to end and for rank 0 to begin the next one"));
      notice_->waits(
          [&] { return text("rank 0 at ", address_.text(), past == 0 ? "" : " to begin again"); });
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  // A second connection to the same store. It may fail when the first did not: c10d looks up the
  // host's name each time, and a name server may not answer.
  c10::intrusive_ptr<c10d::Store> connect_again(const StorePtr& store) const {
    for (;;) {
      std::string reason;
      try {
        const auto again =
            call_with_timeout(left() + milliseconds(1000), [store] { return store->clone(); });
        if (!again) throw no_answer();
        return *again;
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        reason = error.what();
      }
      if (steady_clock::now() >= end_)
        throw RankError(text("no second connection to the store at ", address_.text(), ": ",
                             reason.substr(0, reason.find('\n'))));
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  Rendezvous rendezvous_of(const StorePtr& store, const Met& met) const {
    const auto watched = connect_again(store);
    const std::string prefix = Round::prefix(met.round);
    Rendezvous result{c10::make_intrusive<c10d::PrefixStore>(prefix, store),
                      c10::make_intrusive<c10d::PrefixStore>(prefix, watched)};
    for (const Round::Card& card : met.cards) {
      result.identities.push_back(card.identity);
      result.restart = std::max(result.restart, card.restart);
      if (card.identity.machine != met.cards[0].identity.machine &&
          result.address_of_rank_zero.empty() && !environment_.store_of_launcher)
        result.address_of_rank_zero = card.address_of_rank_zero;
    }
    // Its own name may resolve to the loopback device there.
    for (ProcessIdentity& identity : result.identities)
      if (identity.address.empty() && identity.machine == met.cards[0].identity.machine)
        identity.address = result.address_of_rank_zero;
    return result;
  }

  launch::RankEnvironment environment_;
  milliseconds deadline_;
  steady_clock::time_point end_;
  StoreAddress address_;
  bool hosts_store_ = false;
  std::shared_ptr<WaitNotice> notice_;
};

}  // namespace

Rendezvous rendezvous(const launch::RankEnvironment& environment, milliseconds deadline) {
  return Arrival(environment, deadline).arrive();
}

}  // namespace trestle::comm
