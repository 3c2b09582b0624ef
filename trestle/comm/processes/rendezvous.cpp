#include "trestle/comm/processes/rendezvous.h"

#include <c10/util/Exception.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/processes/call_with_timeout.h"
#include "trestle/comm/processes/network.h"
#include "trestle/comm/processes/process_control_plane.h"
#include "trestle/comm/rank_error.h"
#include "trestle/launch/exit_status.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// One start of the ranks may make several worlds, one after another: in one process, or in
// processes of a script. Rank 0's store is destroyed with its world. A rank that arrives before
// that waits for the next store. In a launcher's store each world has its own prefix.
//
// Keys: "size": the world size, and which rank set it. "card/R": the process of rank R. "refused":
// why the ranks cannot form a world. "ready": all ranks have arrived.
class Arrival {
 public:
  Arrival(const launch::RankEnvironment& environment, milliseconds deadline)
      : environment_(environment),
        deadline_(deadline),
        end_(steady_clock::now() + deadline),
        place_(text(environment.address, ":", environment.port)),
        hosts_store_(environment.rank == 0 && !environment.store_of_launcher) {}

  Rendezvous arrive() {
    for (int worlds = 0;; ++worlds) {
      const auto tcp = hosts_store_ ? open() : connect();
      const std::string prefix =
          text("trestle/", environment_.restart, "/", environment_.store_of_launcher ? worlds : 0);
      store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, tcp);
      if (hosts_store_ || !has_left_this_world()) return join_world(tcp, prefix);
      if (steady_clock::now() >= end_)
        throw DeadlineError(text("rank ", environment_.rank, " waited longer than ",
                                 seconds_text(deadline_), " for the previous world at ", place_,
                                 " to end"));
      if (!environment_.store_of_launcher) std::this_thread::sleep_for(milliseconds(20));
    }
  }

 private:
  // Whether this is the store of an earlier world, which this rank has left. A store that breaks
  // now is one.
  bool has_left_this_world() const {
    try {
      const auto was = call_with_timeout(left() + milliseconds(1000),
                                         [store = store_, rank = environment_.rank] {
                                           return ProcessControlPlane::has_left(*store, rank);
                                         });
      if (was) return *was;
    } catch (const std::exception&) {
      if (!environment_.store_of_launcher) return true;
      throw;
    }
    throw no_answer();
  }

  RankError no_answer() const {
    return RankError(text("the store at ", place_, " no longer answers"));
  }

  Rendezvous join_world(const c10::intrusive_ptr<c10d::TCPStore>& tcp, const std::string& prefix) {
    const auto identities =
        call_with_timeout(left() + milliseconds(1000),
                          [self = *this]() mutable { return self.exchange_identities(); });
    if (!identities) throw no_answer();
    const auto watched =
        call_with_timeout(left() + milliseconds(1000), [tcp] { return tcp->clone(); });
    if (!watched) throw no_answer();
    return {store_, c10::make_intrusive<c10d::PrefixStore>(prefix, *watched), *identities};
  }

  milliseconds left() const {
    return std::max(milliseconds(1),
                    std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now()));
  }

  enum class Role { Host, Client };
  c10d::TCPStoreOptions options(Role role) const {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(environment_.port);
    options.isServer = role == Role::Host;
    options.waitWorkers = false;
    options.numWorkers = static_cast<std::size_t>(environment_.world_size);
    options.timeout = deadline_;
    return options;
  }

  // Opens the socket here: libtorch would open an IPv6 socket, and its store then makes a DNS
  // lookup for each IPv4 connection before it answers, which may take seconds.
  c10::intrusive_ptr<c10d::TCPStore> open() const {
    std::string problem;
    auto own = options(Role::Host);
    own.masterListenFd = listen_at(environment_.address, environment_.port, problem);
    if (*own.masterListenFd < 0)
      throw RankError(
          text("rank 0 cannot open port ", environment_.port, ": ", problem),
          {.hint = "Choose another MASTER_PORT (trestle launch: --rendezvous HOST:PORT). Perhaps "
                   "another run is active here, or two processes were started as rank 0."});
    // Checked first: libtorch logs long stack traces. Ranks that connect now wait for the store.
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
          text("rank ", environment_.rank, " could not reach rank 0 at ", place_, " within ",
               seconds_text(deadline_), ": ", *error),
          {.hint = "Is rank 0 running, and are MASTER_ADDR and MASTER_PORT (trestle launch: "
                   "--rendezvous) its machine and port?"});
    std::string problem = "it does not answer";
    // The store of a world that is ending may close the connection; the next store opens soon.
    for (int tries = 0; tries < 20; ++tries) {
      try {
        const auto store =
            call_with_timeout(left() + milliseconds(500),
                              [address = environment_.address, options = options(Role::Client)] {
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
    throw RankError(text("the program at ", place_,
                         " is not a rendezvous store: ", problem.substr(0, problem.find('\n'))),
                    {.hint = "Another program uses this port: choose another MASTER_PORT (trestle "
                             "launch: --rendezvous HOST:PORT)."});
  }

  std::vector<ProcessIdentity> exchange_identities() {
    try {
      agree_on_size();
      publish_identity();
      return wait_for_all();
    } catch (const Error&) {
      // Keeps the store alive, so that the other ranks can read the reason.
      if (hosts_store_) std::this_thread::sleep_for(milliseconds(500));
      throw;
    } catch (const std::exception& error) {
      const std::string message = error.what();
      throw RankError(text("the store at ", place_, " closed while rank ", environment_.rank,
                           " waited for the other ranks: ", message.substr(0, message.find('\n'))));
    }
  }

  // Fails the other ranks too, unless all have arrived already: a latecomer must not end a run.
  [[noreturn]] void refuse_world(const std::string& reason) {
    if (!store_->check({"ready"})) store_->compareSet("refused", "", reason);
    throw UsageError(reason);
  }

  void agree_on_size() {
    const std::string mine = text(environment_.world_size, "\t", environment_.rank);
    const auto first = split(store_->compareSet("size", "", mine), '\t');
    if (first.size() == 2 && first[0] != std::to_string(environment_.world_size))
      refuse_world(text("rank ", environment_.rank, " was started with world size ",
                        environment_.world_size, ", and rank ", first[1], " with world size ",
                        first[0]));
  }

  void publish_identity() {
    const ProcessIdentity identity = own_process_identity();
    ProcessControlPlane::prepare(*store_, environment_.rank);
    const std::string first =
        store_->compareSet(identity_key(environment_.rank), "", identity.to_text());
    if (first == identity.to_text()) return;
    const ProcessIdentity other = ProcessIdentity::from_text(first);
    refuse_world(text("two processes have the rank number ", environment_.rank, ": ", other.pid,
                      " on ", other.host, " and ", identity.pid, " on ", identity.host));
  }

  static std::string identity_key(int rank) { return text("card/", rank); }

  std::vector<ProcessIdentity> wait_for_all() {
    std::vector<int> missing;
    for (int r = 0; r < environment_.world_size; ++r) missing.push_back(r);
    for (;;) {
      if (store_->check({"refused"})) {
        const std::string reason = store_->get_to_str("refused");
        if (reason.starts_with(late_mark)) throw DeadlineError(reason.substr(1));
        throw UsageError(reason);
      }
      std::erase_if(missing, [&](int rank) { return store_->check({identity_key(rank)}); });
      if (missing.empty()) break;
      if (steady_clock::now() >= end_) {
        const std::string reason =
            text(launch::describe_ranks(missing), " of ", environment_.world_size,
                 missing.size() == 1 ? " has" : " have", " not arrived at ", place_, " within ",
                 seconds_text(deadline_));
        store_->compareSet("refused", "", late_mark + reason);
        throw DeadlineError(reason);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    store_->set("ready", "1");
    std::vector<ProcessIdentity> identities;
    for (int r = 0; r < environment_.world_size; ++r)
      identities.push_back(ProcessIdentity::from_text(store_->get_to_str(identity_key(r))));
    return identities;
  }

  static constexpr const char* late_mark = "!";

  launch::RankEnvironment environment_;
  milliseconds deadline_;
  steady_clock::time_point end_;
  std::string place_;
  bool hosts_store_ = false;
  StorePtr store_;
};

}  // namespace

Rendezvous rendezvous(const launch::RankEnvironment& environment, milliseconds deadline) {
  return Arrival(environment, deadline).arrive();
}

}  // namespace trestle::comm
