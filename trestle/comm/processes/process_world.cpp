#include "trestle/comm/processes/process_world.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/backends/backend_connection.h"
#include "trestle/comm/backends/gloo_backend.h"
#include "trestle/comm/backends/nccl_backend.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/comm/processes/call_with_timeout.h"
#include "trestle/comm/processes/log_silencer.h"
#include "trestle/comm/processes/network.h"
#include "trestle/comm/processes/process_control_plane.h"
#include "trestle/comm/processes/rendezvous.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/sigpipe_guard.h"
#include "trestle/comm/threads/thread_connection.h"
#include "trestle/comm/world_impl.h"
#include "trestle/launch/notes.h"

namespace trestle::comm {
namespace {

// A rank that released its group before other ranks had connected would break their connecting.
void wait_until_all_connected(c10d::Store& store, const std::string& key, int size,
                              std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  for (auto connected = store.add(key, 1); connected < size; connected = store.add(key, 0)) {
    if (std::chrono::steady_clock::now() >= end)
      throw std::runtime_error(
          text("timed out: ", connected, " of ", size, " ranks are connected"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class ProcessWorld : public World::Impl {
 public:
  ProcessWorld(Facts facts, std::shared_ptr<ControlPlane> control,
               c10::intrusive_ptr<c10d::Store> store, const std::string& address,
               GpuBackend gpu_backend)
      : Impl(std::move(facts), std::move(control)),
        store_(std::move(store)),
        gloo_(std::make_shared<GlooDevice>(address)),
        gpu_backend_(gpu_backend) {}

  ~ProcessWorld() override {
    fail_if_unwinding();
    forget_group();
  }

  std::shared_ptr<Connection> connect(int number, const std::vector<int>& ranks) override {
    const SigpipeGuard sigpipe_guard;  // also for the backend's threads, which start here
    check_ranks(number, ranks);
    auto place = place_in(ranks);
    if (!place) return nullptr;
    if (ranks.size() == 1)
      return std::make_shared<ThreadConnection>(std::move(*place),
                                                std::make_shared<ThreadHub>(ranks));
    const auto make = [=, store = store_, gloo = gloo_, gpu_backend = gpu_backend_,
                       rank = place->rank, deadline = facts().deadline,
                       size = static_cast<int>(ranks.size())] {
      const auto keys = [&](const char* backend) {
        return c10::make_intrusive<c10d::PrefixStore>(text("group/", number, "/", backend), store);
      };
      auto cpu = gloo->connect(keys("gloo"), rank, size, deadline);
      auto gpu = gpu_backend == GpuBackend::Nccl ? nccl_backend(keys("nccl"), rank, size, deadline)
                                                 : c10::intrusive_ptr<c10d::Backend>();
      wait_until_all_connected(*store, text("group/", number, "/connected"), size, deadline);
      return std::pair(std::move(cpu), std::move(gpu));
    };
    auto [cpu, gpu] =
        with_deadline(text("making the group of ranks [", join(ranks, ", "), "]"), make);
    return BackendConnection::make(std::move(*place), std::move(cpu), std::move(gpu));
  }

 private:
  // Runs a libtorch call that waits for other ranks, with trestle's deadline and errors.
  template <class Call>
  auto with_deadline(const std::string& what, Call call) -> decltype(call()) {
    if (const auto known = control()->failure_with_stall_note()) throw RankError(*known);
    std::string problem;
    try {
      if (auto made = call_with_timeout(facts().deadline + std::chrono::seconds(1), call,
                                        [this] { return control()->failure().has_value(); }))
        return std::move(*made);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (const auto known = control()->failure_with_stall_note()) throw RankError(*known);
    const bool late = problem.empty() || problem.find("imeout") != std::string::npos ||
                      problem.find("imed out") != std::string::npos;
    const std::string reason = text("rank ", facts().rank, " in ", what, ": ",
                                    late ? deadline_message(facts().deadline, others())
                                         : problem.substr(0, problem.find('\n')));
    control()->fail(reason);
    if (late) throw DeadlineError(reason);
    throw RankError(*control()->failure_with_stall_note());
  }

  std::string others() const {
    std::vector<int> all;
    for (int r = 0; r < facts().size; ++r) all.push_back(r);
    return statuses(*control(), all, facts().rank);
  }

  void check_ranks(int number, const std::vector<int>& ranks) {
    const std::string mine = join(ranks, ", ");
    const std::string first = with_deadline("making a group", [store = store_, number, mine] {
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
  const GpuBackend gpu_backend_;
};

// The address of this rank that the other ranks connect to. Not used if GLOO_SOCKET_IFNAME names a
// network.
std::string own_address(const launch::RankEnvironment& environment, const Rendezvous& meeting) {
  const auto& identities = meeting.identities;
  const auto is_here = [&](const ProcessIdentity& identity) {
    return identity.machine == identities[static_cast<std::size_t>(environment.rank)].machine;
  };
  if (std::all_of(identities.begin(), identities.end(), is_here) || named_interface() != nullptr)
    return "127.0.0.1";
  const auto is_of_network = [](const std::string& address) {
    return !address.empty() && !is_loopback(address);
  };
  std::string address = local_address_towards(environment.address, environment.port);
  if (is_of_network(address)) return address;
  // On rank 0's machine its own name may resolve to the loopback device, as on Debian.
  if (is_here(identities[0]) && !meeting.address_of_rank_zero.empty())
    return meeting.address_of_rank_zero;
  for (const ProcessIdentity& identity : identities) {
    if (is_here(identity)) continue;
    const std::string& other = identity.address.empty() ? identity.host : identity.address;
    address = local_address_towards(other, environment.port);
    if (is_of_network(address)) return address;
  }
  throw UsageError(text("rank ", environment.rank, " has no address on the route to ",
                        environment.address, " that other machines can reach"),
                   {.hint = "Name this machine's network in GLOO_SOCKET_IFNAME, for example eth0, "
                            "or give rank 0's address instead of its name in MASTER_ADDR (trestle "
                            "launch: --rendezvous)."});
}

}  // namespace

void check_network() {
  const char* const name = named_interface();
  if (name == nullptr) return;
  if (const auto problem = interface_problem(name))
    throw UsageError(text("environment variable GLOO_SOCKET_IFNAME=", name, ": ", *problem),
                     {.hint = "Name the interface that leads to the other machines, or unset the "
                              "variable."});
}

World process_world(const launch::RankEnvironment& environment, GpuBackend gpu_backend,
                    std::chrono::milliseconds deadline) {
  const SigpipeGuard sigpipe_guard;
  // libtorch warns of every connection whose host has no name, also in the store's own thread.
  const LogSilencer silencer;
  launch::note_deadline(deadline);
  Rendezvous meeting = rendezvous(environment, deadline);
  launch::note_restart(meeting.restart);
  const auto rank = static_cast<std::size_t>(environment.rank);
  World::Impl::Facts facts{.rank = environment.rank,
                           .size = environment.world_size,
                           .local_rank = environment.local_rank,
                           .local_size = environment.local_size,
                           .restart = meeting.restart,
                           .backend = gpu_backend == GpuBackend::Nccl ? "nccl" : "gloo",
                           .started_by = environment.source,
                           .machine = meeting.identities[rank].machine,
                           .deadline = deadline};
  for (const ProcessIdentity& identity : meeting.identities)
    facts.machines.push_back(identity.machine);
  auto control = std::make_shared<ProcessControlPlane>(
      ProcessControlPlane::Facts{
          .rank = environment.rank,
          .identities = meeting.identities,
          .hosts_store = environment.rank == 0 && !environment.store_of_launcher,
          .store_of_launcher = environment.store_of_launcher,
          .deadline = deadline},
      meeting.watched, meeting.store);
  try {
    auto world = std::make_shared<ProcessWorld>(std::move(facts), control, meeting.store,
                                                own_address(environment, meeting), gpu_backend);
    world->connect_all();
    return World(std::move(world));
  } catch (...) {  // the other ranks must not wait for this one
    control->fail(reason_of_rank(error_message(std::current_exception()), environment.rank));
    throw;
  }
}

}  // namespace trestle::comm
