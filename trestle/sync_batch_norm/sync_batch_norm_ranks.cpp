#include <unistd.h>

#include <array>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/device.h"
#include "trestle/sync_batch_norm/sync_batch_norm_function.h"

namespace trestle::sharding {
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
  const auto all = group.all_gather_bytes(options + "\n" + backward_thread(input.device()));
  const std::string first = split(all[0], '\n').at(0);
  std::map<std::string, int> threads;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto lines = split(all[r], '\n');
    const int rank = group.ranks()[r];
    if (lines.at(0) != first) {
      throw UsageError(text("the ranks' batch norms differ: rank ", group.ranks()[0], " has ",
                            first, ", rank ", rank, " has ", lines.at(0)),
                       {.hint = "All ranks must make the same net."});
    }
    if (lines.at(1).empty()) continue;
    const auto [known, is_new] = threads.emplace(lines.at(1), rank);
    if (is_new) continue;
    throw UsageError(
        text("rank ", known->second, " and rank ", rank, " are both on ", lines.at(1),
             ": their SyncBatchNorms would wait for each other in one backward thread"),
        {.hint = "Give each rank a device of its own, or the plain cpu."});
  }
}

}  // namespace trestle::sharding
