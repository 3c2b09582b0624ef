#include "trestle/device/stream_check.h"

#include "trestle/base/error.h"
#include "trestle/device/virtual/stream_order.h"
#include "trestle/device/virtual_device.h"

namespace trestle {

StreamCheck::StreamCheck() {
  if (!virtual_devices_installed()) {
    throw StateError("streams can be checked on virtual devices only, and none are installed",
                     {.hint = "Call install_virtual_devices() first."});
  }
  if (virt::checks_streams()) {
    throw StateError("another StreamCheck lives in this process",
                     {.hint = "Destroy it first: a StreamCheck watches all virtual devices."});
  }
  virt::begin_stream_check();
}

StreamCheck::~StreamCheck() { virt::end_stream_check(); }

std::vector<std::string> StreamCheck::findings() const { return virt::stream_findings(); }

}  // namespace trestle
