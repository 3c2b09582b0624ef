#include <charconv>
#include <optional>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/cuda_count.h"
#include "trestle/device/device.h"
#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

constexpr const char* forms =
    "Write cpu, virtual:2, virtual:2x512MiB, virtual:0,virtual:1, cuda:0,cuda:1 or cuda:all.";

// One item between commas: kind[:number[xbudget]].
struct Item {
  std::string text;
  std::string kind;
  std::optional<int> number = {};
  std::optional<Bytes> budget = {};
  bool all = false;  // cuda:all
};

std::optional<int> parse_number(std::string_view digits) {
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0)
    return std::nullopt;
  return number;
}

Item parse_item(std::string_view written) {
  Item item{.text = trim(written), .kind = {}};
  const std::size_t colon = item.text.find(':');
  item.kind = trim(item.text.substr(0, colon));
  if (item.kind != "cpu" && item.kind != "virtual" && item.kind != "cuda") {
    throw UsageError(text("'", item.text, "' is not a kind of device",
                          did_you_mean(item.kind, {"cpu", "virtual", "cuda"})),
                     {.hint = forms});
  }
  if (colon == std::string::npos) return item;
  std::string number = item.text.substr(colon + 1);
  if (const std::size_t times = number.find('x');
      times != std::string::npos && item.kind == "virtual") {
    const std::string budget = trim(number.substr(times + 1));
    if (budget.empty())
      throw UsageError(text("'", item.text, "' has no size of memory after the x"),
                       {.hint = forms});
    item.budget = parse_bytes(budget);
    number.resize(times);
  }
  if (item.kind == "cuda" && trim(number) == "all") {
    item.all = true;
    return item;
  }
  item.number = parse_number(trim(number));
  if (!item.number)
    throw UsageError(text("'", item.text, "' has no device number"), {.hint = forms});
  return item;
}

enum class ParseMode { Compute, Plan };

std::vector<Device> virtual_groups(const std::vector<Item>& items, ParseMode mode) {
  int total = 0;
  for (const Item& item : items) {
    if (*item.number < 1)
      throw UsageError(text("'", item.text, "' requests no device"), {.hint = forms});
    total += *item.number;
    if (total > most_virtual_devices) {
      throw UsageError(text("'", item.text, "' makes ", total, " virtual devices"),
                       {.hint = text("A process can have ", most_virtual_devices, ".")});
    }
  }
  std::vector<Device> devices;
  if (mode == ParseMode::Compute) devices = virtual_devices(total);
  while (static_cast<int>(devices.size()) < total)
    devices.push_back({virt::nth_device(static_cast<int>(devices.size())), 0});
  std::size_t next = 0;
  for (const Item& item : items) {
    for (int i = 0; i < *item.number; ++i, ++next) {
      devices[next].budget = item.budget.value_or(0);
      if (mode == ParseMode::Compute) set_budget(devices[next].torch, devices[next].budget);
    }
  }
  return devices;
}

std::vector<Device> virtual_by_number(const std::vector<Item>& items, ParseMode mode) {
  const bool compute = mode == ParseMode::Compute;
  if (compute) install_virtual_devices({.count = static_cast<int>(items.size())});
  const int count = compute ? virtual_device_count() : most_virtual_devices;
  std::vector<Device> devices;
  for (const Item& item : items) {
    if (*item.number >= count) {
      throw UsageError(text("'", item.text, "' does not exist"),
                       {.hint = text("There are virtual:0 to virtual:", count - 1, ".")});
    }
    const at::Device device = virt::nth_device(*item.number);
    devices.push_back({device, compute ? budget(device) : 0});
  }
  return devices;
}

// A single "virtual:N" is a number of devices, as is every item with a budget. In a list, plain
// numbers name devices.
std::vector<Device> parse_virtual(std::vector<Item> items, ParseMode mode) {
  std::size_t groups = 0;
  for (Item& item : items) {
    if (!item.number) item.number = items.size() == 1 ? 1 : 0;
    if (item.budget) ++groups;
  }
  if (items.size() == 1) items[0].number = std::max(*items[0].number, items[0].budget ? 0 : 1);
  if (items.size() == 1 || groups == items.size()) return virtual_groups(items, mode);
  if (groups == 0) return virtual_by_number(items, mode);
  throw UsageError(
      "some of the virtual devices have a budget and some do not, so a number could count devices "
      "or name one",
      {.hint = "Give every group its budget: virtual:1x1GiB,virtual:2x512MiB (0 for no limit)."});
}

std::vector<Device> parse_cuda(const std::vector<Item>& items) {
  if (cuda_count() > 0) cuda_devices(1);  // throws if there are virtual devices
  if (items.size() == 1 && items[0].all && cuda_count() > 0) return cuda_devices(cuda_count());
  std::vector<Device> devices;
  for (const Item& item : items) {
    if (item.all && items.size() > 1) {
      throw UsageError(text("'", item.text, "' cannot be combined with other devices"),
                       {.hint = "Write cuda:all alone, or name the devices: cuda:0,cuda:1."});
    }
    const int number = item.number.value_or(0);
    if (number >= cuda_count()) {
      throw UsageError(
          text("'", item.text, "' does not exist: ",
               cuda_count() == 0 ? std::string("this process sees no CUDA device")
                                 : text("there are cuda:0 to cuda:", cuda_count() - 1)),
          {.hint =
               text("Use --devices virtual:", items.size(), " to try the same plan on the CPU.")});
    }
    devices.push_back({at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(number)), 0});
  }
  return devices;
}

std::vector<Device> cuda_on_paper(const std::vector<Item>& items) {
  std::vector<Device> devices;
  for (const Item& item : items) {
    if (item.all)
      throw UsageError("'cuda:all' is unknown on a machine without the GPUs",
                       {.hint = "List the GPUs of the plan: cuda:0,cuda:1."});
    devices.push_back(
        {at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(item.number.value_or(0))), 0});
  }
  return devices;
}

std::vector<Device> parse(std::string_view written, ParseMode mode) {
  std::vector<Item> items;
  for (const std::string& part : split(written, ',')) {
    if (trim(part).empty())
      throw UsageError(text("no device named in '", written, "'"), {.hint = forms});
    items.push_back(parse_item(part));
    if (items.back().kind != items.front().kind) {
      throw UsageError(text("'", written, "' mixes ", items.front().kind, " and ",
                            items.back().kind, " devices"),
                       {.hint = "Use one kind of device in a process."});
    }
  }
  const std::string kind = items.front().kind;
  if (kind == "virtual") return parse_virtual(std::move(items), mode);
  if (kind == "cuda") return mode == ParseMode::Compute ? parse_cuda(items) : cuda_on_paper(items);
  for (const Item& item : items) {
    if (item.number && *item.number != 0) {
      throw UsageError(
          text("'", item.text, "' does not exist: there is one CPU device"),
          {.hint = text("Use virtual:", *item.number, " for several devices on the CPU.")});
    }
  }
  return std::vector<Device>(items.size(), cpu_device());
}

}  // namespace

std::vector<Device> parse_devices(std::string_view written) {
  return parse(written, ParseMode::Compute);
}

std::vector<Device> planned_devices(std::string_view written) {
  return parse(written, ParseMode::Plan);
}

}  // namespace trestle
