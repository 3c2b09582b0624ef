#include "trestle/comm/process_world.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/bounded.h"
#include "trestle/comm/engine_connection.h"
#include "trestle/comm/gloo_backend.h"
#include "trestle/comm/nccl_backend.h"
#include "trestle/comm/network.h"
#include "trestle/comm/no_broken_pipe.h"
#include "trestle/comm/process_control.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/rendezvous.h"
#include "trestle/comm/thread_connection.h"
#include "trestle/comm/world_impl.h"

namespace trestle::comm {
namespace {

class ProcessWorld : public World::Impl {
 public:
  ProcessWorld(Facts facts, std::shared_ptr<Control> control, c10::intrusive_ptr<c10d::Store> store,
               const std::string& address, bool with_nccl)
      : Impl(std::move(facts), std::move(control)),
        store_(std::move(store)),
        gloo_(std::make_shared<GlooDevice>(address)),
        with_nccl_(with_nccl) {}

  ~ProcessWorld() override {
    fail_if_unwinding();
    forget_group();
  }

  std::shared_ptr<Connection> connect(int number, const std::vector<int>& ranks) override {
    const NoBrokenPipe no_broken_pipe;  // also for the engine's threads, which begin here
    check_ranks(number, ranks);
    auto place = place_in(ranks);
    if (!place) return nullptr;
    if (ranks.size() == 1)
      return std::make_shared<ThreadConnection>(std::move(*place),
                                                std::make_shared<ThreadHub>(ranks));
    const auto make = [=, store = store_, gloo = gloo_, with_nccl = with_nccl_, rank = place->rank,
                       deadline = facts().deadline, size = static_cast<int>(ranks.size())] {
      const auto keys = [&](const char* engine) {
        return c10::make_intrusive<c10d::PrefixStore>(text("group/", number, "/", engine), store);
      };
      auto cpu = gloo->connect(keys("gloo"), rank, size, deadline);
      return std::pair(std::move(cpu), with_nccl ? nccl_backend(keys("nccl"), rank, size, deadline)
                                                 : c10::intrusive_ptr<c10d::Backend>());
    };
    auto [cpu, gpu] = bounded(text("making the group of ranks [", join(ranks, ", "), "]"), make);
    return EngineConnection::make(std::move(*place), std::move(cpu), std::move(gpu));
  }

 private:
  // What waits for other ranks in libtorch, with our deadline and our errors.
  template <class Call>
  auto bounded(const std::string& what, Call call) -> decltype(call()) {
    if (const auto known = control()->failure_in_own_words()) throw RankError(*known);
    std::string problem;
    try {
      if (auto made = within(facts().deadline + std::chrono::seconds(1), call,
                             [this] { return control()->failure().has_value(); }))
        return std::move(*made);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (const auto known = control()->failure_in_own_words()) throw RankError(*known);
    const bool late = problem.empty() || problem.find("imeout") != std::string::npos ||
                      problem.find("imed out") != std::string::npos;
    const std::string reason = text("rank ", facts().rank, " in ", what, ": ",
                                    late ? deadline_message(facts().deadline, others())
                                         : problem.substr(0, problem.find('\n')));
    control()->fail(reason);
    if (late) throw DeadlineError(reason);
    throw RankError(*control()->failure_in_own_words());
  }

  std::string others() const {
    std::vector<int> all;
    for (int r = 0; r < facts().size; ++r) all.push_back(r);
    return statuses(*control(), all, facts().rank);
  }

  void check_ranks(int number, const std::vector<int>& ranks) {
    const std::string mine = join(ranks, ", ");
    const std::string first = bounded("making a group", [store = store_, number, mine] {
      return store->compareSet(text("group/", number, "/ranks"), "", mine);
    });
    if (first == mine) return;
    const std::string reason = text("ranks make different groups: [", first, "] and, on rank ",
                                    facts().rank, ", [", mine, "]");
    control()->fail(reason);
    throw UsageError(reason, {.hint = "Every rank makes the same groups in the same order."});
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<GlooDevice> gloo_;
  const bool with_nccl_;
};

// The address that the other ranks' connections go to.
std::string own_address(const launch::RankEnvironment& environment,
                        const std::vector<ProcessCard>& cards) {
  const bool all_here = std::all_of(cards.begin(), cards.end(), [&](const ProcessCard& card) {
    return card.machine == cards[0].machine;
  });
  if (all_here) return "127.0.0.1";
  const std::string address = local_address_towards(environment.address, environment.port);
  if (!address.empty() && !address.starts_with("127.") && address != "::1") return address;
  // Rank 0's own name may mean the loopback device here; the way to anywhere else does not.
  for (const ProcessCard& card : cards) {
    const std::string other = local_address_towards(card.host, environment.port);
    if (!other.empty() && !other.starts_with("127.") && other != "::1") return other;
  }
  throw UsageError(text("rank ", environment.rank, " has no address on the way to ",
                        environment.address, " that other machines can reach"),
                   {.hint = "Name the network in GLOO_SOCKET_IFNAME, for example eth0."});
}

}  // namespace

World process_world(const launch::RankEnvironment& environment, bool with_nccl,
                    std::chrono::milliseconds deadline) {
  const NoBrokenPipe no_broken_pipe;
  Meeting meeting = meet(environment, deadline);
  const auto rank = static_cast<std::size_t>(environment.rank);
  World::Impl::Facts facts{.rank = environment.rank,
                           .size = environment.world_size,
                           .local_rank = environment.local_rank,
                           .local_size = environment.local_size,
                           .restart = environment.restart,
                           .backend = with_nccl ? "nccl" : "gloo",
                           .started_by = environment.source,
                           .machine = meeting.cards[rank].machine,
                           .deadline = deadline};
  const std::string address = own_address(environment, meeting.cards);
  auto control = std::make_shared<ProcessControl>(
      ProcessControl::Facts{.rank = environment.rank,
                            .cards = meeting.cards,
                            .holds_store = environment.rank == 0 && !environment.store_of_launcher,
                            .store_of_launcher = environment.store_of_launcher,
                            .deadline = deadline},
      meeting.watched, meeting.store);
  auto world = std::make_shared<ProcessWorld>(std::move(facts), std::move(control), meeting.store,
                                              address, with_nccl);
  world->connect_all();
  return World(std::move(world));
}

}  // namespace trestle::comm
