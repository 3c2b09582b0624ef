#include "trestle/comm/start_failure.h"

#include <chrono>
#include <exception>
#include <thread>

#include "trestle/base/text.h"
#include "trestle/comm/processes/log_silencer.h"
#include "trestle/comm/processes/network.h"
#include "trestle/comm/processes/round.h"
#include "trestle/comm/processes/store_address.h"
#include "trestle/comm/sigpipe_guard.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds limit{1000};

// Rank 0 opens the round that it refuses, and keeps the store alive until others have read it.
void refuse_as_rank_zero(const launch::RankEnvironment& environment, const Error& error) {
  const auto end = steady_clock::now() + limit;
  const StoreAddress address(environment, limit);
  const auto store = environment.store_of_launcher ? address.connect(end) : address.open(end);
  Round round(store, Round::open(*store), environment, address.text());
  round.refuse_start(error);
  if (environment.store_of_launcher) return;
  // The ranks of this machine have mostly the same error, and do not wait for it.
  const bool has_others = environment.local_size < environment.world_size;
  round.settle(has_others ? environment.local_size : 1, Round::time_for_latecomers);
}

void refuse_at_rank_zero(const launch::RankEnvironment& environment, const Error& error) {
  const auto end = steady_clock::now() + limit;
  const StoreAddress address(environment, limit);
  for (; steady_clock::now() < end; std::this_thread::sleep_for(milliseconds(20))) {
    if (cannot_reach(environment.address, environment.port, end)) return;
    const auto store = address.connect(end);
    const std::int64_t number = Round::latest(*store);
    if (number > 0 && Round(store, number, environment, address.text()).refuse_start(error)) return;
  }
}

}  // namespace

void report_start_failure(const launch::RankEnvironment& environment, const Error& error) {
  if (environment.world_size < 2 || environment.port < 1 || environment.port > 65535) return;
  const SigpipeGuard sigpipe_guard;
  const LogSilencer silencer;
  try {
    if (environment.rank == 0)
      refuse_as_rank_zero(environment, error);
    else
      refuse_at_rank_zero(environment, error);
  } catch (const std::exception&) {  // no other rank is there; the caller's error counts
  }
}

}  // namespace trestle::comm
