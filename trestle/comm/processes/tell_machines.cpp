#include "trestle/comm/tell_machines.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <system_error>
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

milliseconds left(steady_clock::time_point end) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(end - steady_clock::now()));
}

// In place of rank 0, which does not come again, for ranks that wait for its store.
void host_end(const StoreAddress& address, const launch::RankEnvironment& environment,
              const launch::NewsForMachines& news, steady_clock::time_point end) {
  const auto store = address.open(end);
  Round round(store, Round::open(*store), environment, address.text());
  round.take(news);
  round.wait_until_told(news.ranks, left(end));
}

}  // namespace

void tell_machines(const launch::NewsForMachines& news) {
  const std::string refused = std::generic_category().message(ECONNREFUSED);
  const LogSilencer silencer;
  launch::RankEnvironment environment;
  environment.address = news.address;
  environment.port = news.port;
  environment.world_size = news.world_size;
  const bool ranks_may_wait =
      news.is_end && !news.is_settled && (news.may_meet_again || !news.have_met);
  const milliseconds limit = ranks_may_wait    ? Round::time_for_latecomers
                             : news.is_settled ? milliseconds(200)
                                               : milliseconds(1000);
  const auto end = steady_clock::now() + limit;
  const StoreAddress address(environment, limit);
  for (; steady_clock::now() < end; std::this_thread::sleep_for(pause)) {
    try {
      const auto problem =
          cannot_reach(news.address, news.port, steady_clock::now() + milliseconds(200));
      if (!problem) {
        const auto store = address.connect(end);
        const std::int64_t number = Round::latest(*store);
        if (number > 0 &&
            (Round(store, number, environment, address.text()).take(news) || !ranks_may_wait))
          return;
      } else if (ranks_may_wait && news.hosts_store) {
        return host_end(address, environment, news, end);
      } else if (!ranks_may_wait && *problem == refused) {
        return;  // rank 0 has ended, and with it its world
      }
    } catch (const std::exception&) {  // the store closed, or rank 0 still ends
    }
  }
}

}  // namespace trestle::comm
