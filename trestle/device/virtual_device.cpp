#include "trestle/device/virtual_device.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceType.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <mutex>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/keyed_generator.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual/allocator.h"
#include "trestle/device/virtual/autocast.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/generator.h"
#include "trestle/device/virtual/guard.h"
#include "trestle/device/virtual/kernels.h"

namespace trestle {
namespace {

// Enough for every plan that a machine's cores can run; the header has the cost of an unused one.
constexpr int fewest_installed = 16;

bool cuda_in_use() {
  if (!at::hasCUDA()) return false;
  const auto& hooks = at::detail::getCUDAHooks();
  for (c10::DeviceIndex i = 0; i < hooks.deviceCount(); ++i) {
    if (hooks.hasPrimaryContext(i)) return true;
  }
  return false;
}

void require_free_backend() {
  if (cuda_in_use()) {
    throw StateError(
        "virtual devices cannot be installed: this process already uses CUDA",
        {.hint = "Install virtual devices before any use of CUDA, and do not use CUDA after."});
  }
  if (c10::is_privateuse1_backend_registered()) {
    throw StateError(
        text("virtual devices cannot be installed: this process has registered the backend '",
             c10::get_privateuse1_backend(), "', and libtorch allows only one such backend"),
        {.hint = "Use virtual devices in a separate process."});
  }
}

// The order matters: libtorch looks up names, guard and allocator when the first tensor needs them.
void install(int count, int threads) {
  require_free_backend();
  set_worker_threads(threads);
  c10::register_privateuse1_backend(virt::backend_name);
  virt::set_device_count(count);
  virt::install_allocators();
  virt::install_guard();
  virt::install_hooks();
  virt::register_kernels();
  virt::register_autocast();
  prepare_keyed_random();
}

// The engine creates its device threads once, at the first backward of the process, and never for
// devices installed later. So the installation runs that first backward. If the process has already
// run one, the error appears here and not in the middle of a training step.
void start_backward_threads(int count) {
  try {
    const c10::InferenceMode no_inference(false);  // the caller may be in inference or no-grad mode
    const at::AutoGradMode grad(true);
    const at::Tensor one =
        at::ones({}, at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(count - 1)));
    one.set_requires_grad(true).mul(1).backward();
  } catch (const c10::Error&) {
    throw StateError(
        "virtual devices were installed too late: this process has already run a backward(), and "
        "libtorch's autograd engine creates threads only for the devices that existed at that time",
        {.hint =
             "Call install_virtual_devices() or virtual_devices() at the start of the program."});
  }
}

int checked_index(at::Device device) {
  const int count = virtual_device_count();
  if (virt::is_virtual(device) && count > 0) {
    if (!device.has_index()) return virt::current_device();
    if (device.index() < count) return device.index();
  }
  throw UsageError(text(device.str(), " is not a virtual device of this process"),
                   {.hint = count > 0 ? text("There are virtual:0 to virtual:", count - 1, ".")
                                      : "Call install_virtual_devices() first."});
}

}  // namespace

void install_virtual_devices(const VirtualDeviceOptions& options) {
  if (options.count < 1 || options.count > most_virtual_devices) {
    throw UsageError(text("cannot install ", options.count, " virtual devices"),
                     {.hint = text("Request 1 to ", most_virtual_devices, ".")});
  }
  if (options.threads_per_device < 0 || options.threads_per_device > most_threads()) {
    throw UsageError(
        text("a virtual device cannot run on ", options.threads_per_device, " threads"),
        {.hint =
             text("Give 1 to ", most_threads(), ", or 0 for the cores divided by the devices.")});
  }
  static std::mutex mutex;
  static bool usable = false;
  const std::lock_guard lock(mutex);
  if (const int installed = virtual_device_count(); installed > 0) {
    if (!usable) start_backward_threads(installed);  // throws again
    if (options.count <= installed) return;
    throw StateError(
        text(options.count, " virtual devices were requested, but this process has ", installed,
             ": the first call fixed their number"),
        {.hint = text("Call install_virtual_devices({.count = ", options.count, "}) first.")});
  }
  const int threads =
      options.threads_per_device > 0 ? options.threads_per_device : threads_of_each(options.count);
  install(std::max(options.count, fewest_installed), threads);
  start_backward_threads(std::max(options.count, fewest_installed));
  usable = true;
}

bool virtual_devices_installed() { return virtual_device_count() > 0; }

int virtual_device_count() { return virt::device_count(); }

void set_budget(at::Device device, Bytes bytes) {
  const int index = checked_index(device);
  if (bytes < 0) {
    throw UsageError(text("a budget of ", bytes, " bytes for ", device.str()),
                     {.hint = "Use 0 for no limit."});
  }
  virt::set_device_budget(index, bytes);
}

Bytes budget(at::Device device) { return virt::usage(checked_index(device)).budget; }

std::optional<OutOfMemoryReport> last_out_of_memory(at::Device device) {
  return virt::last_refusal(checked_index(device));
}

}  // namespace trestle
