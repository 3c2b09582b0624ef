#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/device/device.h"
#include "trestle/sync_batch_norm/sync_batch_norm_function.h"

namespace trestle::sync_batch_norm {
namespace {

// The backward thread of a device, as text, or "" on the CPU, where a backward runs in the calling
// thread.
std::string backward_thread(at::Device device) {
  if (device.is_cpu()) return "";
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return text(device_name(device), " of process ", getpid(), " on ", host.data());
}

}  // namespace

void check_batch_norm_ranks(const comm::Group& group, const at::Tensor& input,
                            const std::string& options) {
  using Sent = std::pair<std::string, std::string>;
  const Sent own(options, backward_thread(input.device()));
  const auto all =
      comm::with_purpose([] { return "while the ranks compared the options of a batch norm"; },
                         [&] { return comm::all_gather_values(group, own); });
  const std::string& first = all.at(0).first;
  std::map<std::string, int> threads;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto& [their_options, thread] = all[r];
    const int rank = group.ranks()[r];
    if (their_options != first) {
      throw UsageError(text("the ranks' batch norms differ: rank ", group.ranks()[0], " has ",
                            first, ", rank ", rank, " has ", their_options),
                       {.hint = "All ranks must make the same net."});
    }
    if (thread.empty()) continue;
    const auto [known, is_new] = threads.emplace(thread, rank);
    if (is_new) continue;
    throw UsageError(
        text("rank ", known->second, " and rank ", rank, " are both on ", thread,
             ": their SyncBatchNorms would wait for each other in one backward thread"),
        {.hint = "Give each rank a device of its own, or the plain cpu."});
  }
}

}  // namespace trestle::sync_batch_norm
