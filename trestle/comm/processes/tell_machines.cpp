#include "trestle/comm/tell_machines.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "trestle/comm/processes/log_silencer.h"
#include "trestle/comm/processes/network.h"
#include "trestle/comm/processes/round.h"
#include "trestle/comm/processes/store_address.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds pause{50};

// In place of rank 0, which does not come again, for ranks that wait for its store.
void host_end(const StoreAddress& address, const launch::RankEnvironment& environment,
              const launch::NewsForMachines& news, steady_clock::time_point end) {
  const auto store = address.open(end);
  Round(store, Round::open(*store), environment, address.text()).take(news);
  std::this_thread::sleep_until(end);
}

}  // namespace

void tell_machines(const launch::NewsForMachines& news) {
  const LogSilencer silencer;
  launch::RankEnvironment environment;
  environment.address = news.address;
  environment.port = news.port;
  const bool ranks_may_wait = news.is_end && (news.may_meet_again || !news.have_met);
  const milliseconds limit(ranks_may_wait ? 3000 : 1000);
  const auto end = steady_clock::now() + limit;
  const StoreAddress address(environment, limit);
  for (; steady_clock::now() < end; std::this_thread::sleep_for(pause)) {
    try {
      if (!cannot_reach(news.address, news.port, steady_clock::now() + milliseconds(200))) {
        const auto store = address.connect(end);
        const std::int64_t number = Round::latest(*store);
        if (number > 0 &&
            (Round(store, number, environment, address.text()).take(news) || !ranks_may_wait))
          return;
      } else if (ranks_may_wait && news.hosts_store) {
        return host_end(address, environment, news, end);
      }
    } catch (const std::exception&) {  // the store closed, or rank 0 still ends
    }
  }
}

}  // namespace trestle::comm
