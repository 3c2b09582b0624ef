#include "trestle/comm/shared_devices.h"

#include <unistd.h>

#include <array>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/device/device.h"

namespace trestle::comm {

void refuse_shared_devices(const Group& group, const std::vector<at::Device>& own,
                           std::string_view which) {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  std::vector<std::string> names;
  for (const at::Device& device : own)
    if (!device.is_cpu())
      names.push_back(text(host.data(), " ", getpid(), "\n", device_name(device)));
  const auto clash = find_clash(group, names);
  if (!clash) return;
  throw UsageError(
      text("ranks ", clash->first, " and ", clash->second, " ", which, " both use ",
           clash->value.substr(clash->value.find('\n') + 1)),
      {.rank = group.rank(), .hint = "Give each rank that is a thread devices of its own."});
}

}  // namespace trestle::comm
