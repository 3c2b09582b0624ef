#include "trestle/comm/processes/store_address.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/processes/call_with_timeout.h"
#include "trestle/comm/processes/network.h"
#include "trestle/comm/rank_error.h"

namespace trestle::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

StoreAddress::StoreAddress(const launch::RankEnvironment& environment, milliseconds deadline)
    : host_(environment.address),
      port_(environment.port),
      rank_(environment.rank),
      world_size_(environment.world_size),
      deadline_(deadline),
      text_(trestle::text(host_, ":", port_)) {}

c10d::TCPStoreOptions StoreAddress::options(Role role) const {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port_);
  options.isServer = role == Role::Host;
  options.waitWorkers = false;
  options.numWorkers = static_cast<std::size_t>(world_size_);
  options.timeout = deadline_;
  return options;
}

// Opens the socket here: libtorch would open an IPv6 socket, and its store then makes a DNS lookup
// for each IPv4 connection before it answers, which may take seconds.
StoreAddress::StorePtr StoreAddress::open(Time end) const {
  std::string problem;
  auto own = options(Role::Host);
  own.masterListenFd = listen_at(host_, port_, problem);
  if (*own.masterListenFd < 0)
    throw RankError(
        trestle::text("rank 0 cannot open port ", port_, ": ", problem),
        {.hint = "Choose another MASTER_PORT (trestle launch: --rendezvous HOST:PORT). Perhaps "
                 "another run is active here, or two processes were started as rank 0."});
  // Checked first: libtorch logs long stack traces. Ranks that connect now wait for the store. The
  // port is open, so only a name server or an interface that is not up yet is worth a wait.
  constexpr milliseconds longest{10000};
  if (const auto error = cannot_reach(host_, port_, std::min(end, steady_clock::now() + longest))) {
    close(*own.masterListenFd);
    throw RankError(trestle::text("rank 0 cannot reach itself at ", text_, ": ", *error),
                    {.hint = "MASTER_ADDR is the name or address of rank 0's machine, the same "
                             "for all ranks (trestle launch: --rendezvous)."});
  }
  return c10::make_intrusive<c10d::TCPStore>(host_, own);
}

StoreAddress::StorePtr StoreAddress::connect(Time end, WaitNotice* notice) const {
  constexpr milliseconds turn{500};
  std::optional<std::string> error;
  while ((error = cannot_reach(host_, port_, std::min(end, steady_clock::now() + turn))) &&
         steady_clock::now() + milliseconds(20) < end)
    if (notice)
      notice->waits([&] { return trestle::text("rank 0 at ", text_, " (", *error, ")"); });
  if (error)
    throw RankError(
        trestle::text("rank ", rank_, " could not reach rank 0 at ", text_, " within ",
                      seconds_text(deadline_), ": ", *error),
        {.hint = "Is rank 0 running, and are MASTER_ADDR and MASTER_PORT (trestle launch: "
                 "--rendezvous) its machine and port?"});
  std::string problem = "it does not answer";
  // The store of a world that is ending may close the connection; the next store opens soon.
  for (int tries = 0; tries < 20; ++tries) {
    try {
      const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
      const auto store =
          call_with_timeout(std::max(milliseconds(1), left) + milliseconds(500),
                            [host = host_, options = options(Role::Client)] {
                              return c10::make_intrusive<c10d::TCPStore>(host, options);
                            });
      if (store) return *store;
      break;
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (steady_clock::now() >= end) break;
    std::this_thread::sleep_for(milliseconds(50));
  }
  throw RankError(
      trestle::text("the program at ", text_,
                    ", where rank 0 should be, is not a rendezvous store: ",
                    problem.substr(0, problem.find('\n'))),
      {.hint = "Rank 0 is stopped, or another program uses this port: then choose another "
               "MASTER_PORT (trestle launch: --rendezvous HOST:PORT)."});
}

}  // namespace trestle::comm
