#include "trestle/comm/processes/wait_notice.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/launch/exit_status.h"
#include "trestle/launch/launcher.h"

namespace trestle::comm {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr std::chrono::seconds interval{5};

// A launcher that prefixes its ranks' lines reads them from pipes.
bool is_shown_on_terminal() {
  return isatty(STDERR_FILENO) == 1 || std::getenv(launch::terminal_variable) != nullptr;
}

}  // namespace

WaitNotice::WaitNotice(const launch::RankEnvironment& environment, milliseconds deadline)
    : prints_(environment.local_rank == 0),
      repeats_(is_shown_on_terminal()),
      deadline_(deadline),
      due_(begin_ + interval) {}

void WaitNotice::waits(const std::function<std::string()>& what) {
  const auto now = Clock::now();
  if (!prints_ || now < due_) return;
  due_ = repeats_ ? due_ + interval : Clock::time_point::max();
  const auto waited =
      duration_cast<milliseconds>(duration_cast<std::chrono::seconds>(now - begin_));
  std::cerr << text("trestle: waiting for ", what(), "; ", seconds_text(waited), " of at most ",
                    seconds_text(deadline_), " have passed\n")
            << std::flush;
}

std::string describe_missing(const std::vector<int>& ranks,
                             const launch::RankEnvironment& environment) {
  std::string words = text(launch::describe_ranks(ranks), " of ", environment.world_size);
  const int per_node = environment.local_size;
  if (environment.node < 0 || per_node >= environment.world_size ||
      environment.world_size % per_node != 0)
    return words;
  std::vector<int> nodes;
  for (const int rank : ranks)
    if (nodes.empty() || nodes.back() != rank / per_node) nodes.push_back(rank / per_node);
  return text(words, nodes.size() == 1 ? " (node " : " (nodes ", join(nodes, ", "), ")");
}

}  // namespace trestle::comm
