#include "trestle/train/calibrate/calibrate.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/comm/world.h"
#include "trestle/device/cuda_count.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/launch/cores.h"
#include "trestle/train/calibrate/block_costs.h"
#include "trestle/train/calibrate/derived_figures.h"
#include "trestle/train/calibrate/device_costs.h"
#include "trestle/train/calibrate/message_tables.h"
#include "trestle/train/calibrate/this_machine.h"

namespace trestle::train {

namespace {

constexpr int fewest_ranks_of_cpu = 4;

// The ranks of a world by their hosts, and the cores that the first rank's host gives its ranks.
struct Hosts {
  std::vector<std::vector<int>> ranks = {{0}};
  std::vector<int> cores = {};

  int on_first() const { return static_cast<int>(ranks.front().size()); }
};

Hosts find_hosts(const World* world) {
  Hosts hosts;
  hosts.cores = launch::allowed_cores();
  if (world == nullptr) return hosts;
  int first = 0;
  while (!world->is_on_this_machine(first)) ++first;
  const auto all = comm::all_gather_values(world->group(), std::pair(first, hosts.cores));
  std::map<int, std::vector<int>> by_host;
  hosts.cores.clear();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    by_host[all[rank].first].push_back(static_cast<int>(rank));
    if (all[rank].first == 0)
      hosts.cores.insert(hosts.cores.end(), all[rank].second.begin(), all[rank].second.end());
  }
  std::sort(hosts.cores.begin(), hosts.cores.end());
  hosts.cores.erase(std::unique(hosts.cores.begin(), hosts.cores.end()), hosts.cores.end());
  hosts.ranks.clear();
  for (const auto& [host, ranks] : by_host) hosts.ranks.push_back(ranks);
  return hosts;
}

// While it lives, the calling thread and the threads that it starts may use these cores: a launcher
// binds each rank to its own.
class OnCores {
 public:
  explicit OnCores(const std::vector<int>& cores)
      : saved_(sched_getaffinity(0, sizeof before_, &before_) == 0) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (const int core : cores)
      if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &all);
    if (saved_) sched_setaffinity(0, sizeof all, &all);
  }
  ~OnCores() {
    if (saved_) sched_setaffinity(0, sizeof before_, &before_);
  }
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;

 private:
  cpu_set_t before_{};
  bool saved_;
};

enum class DeviceKind { Cpu, Virtual, Cuda };

DeviceKind kind_of(const std::string& words) {
  if (words == "cpu") return DeviceKind::Cpu;
  if (words == "virtual") return DeviceKind::Virtual;
  if (words == "cuda" || words == "cuda:0") return DeviceKind::Cuda;
  throw UsageError(text("--device ", words, ": calibrate measures cpu, virtual or cuda:0"),
                   {.hint = "Several GPUs are measured by ranks: --device cuda:0 --ranks 2,4."});
}

// The device of a rank, by its number on its host.
at::Device device_of(DeviceKind kind, int rank) {
  if (kind == DeviceKind::Cpu) return at::kCPU;
  const auto index = static_cast<c10::DeviceIndex>(rank);
  return kind == DeviceKind::Virtual ? at::Device(at::kPrivateUse1, index)
                                     : at::Device(at::kCUDA, index);
}

class Calibrator {
 public:
  Calibrator(const World* world, const CalibrateOptions& options)
      : world_(world),
        options_(options),
        depth_(options.quick ? quick_calibration() : whole_calibration()),
        kind_(kind_of(options.device)),
        hosts_(find_hosts(world)),
        sizes_(options.ranks.empty() ? default_group_sizes(hosts_.on_first()) : options.ranks) {
    resident_at_start_ = resident_bytes();
    check_ranks();
    const int devices = devices_per_node();
    if (kind_ == DeviceKind::Virtual)
      install_virtual_devices({.count = std::max(devices, 2), .threads_per_device = 1});
    if (kind_ == DeviceKind::Cuda) (void)cuda_devices(1);
    threads_ = std::max(1, static_cast<int>(hosts_.cores.size()) / devices);
    set_worker_threads(std::min(threads_, most_threads()));
    device_ = device_of(kind_, world_ == nullptr ? 0 : world_->local_rank());
  }

  Calibration run() {
    const Stopwatch watch;
    Calibration result;
    plan::Machine& machine = result.machine;
    std::vector<Job> jobs;
    add_device_jobs(&machine, &result.notes, &jobs);
    add_thread_jobs(&machine, &jobs);
    add_process_jobs(&machine, &jobs);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (reports() && options_.progress)
        options_.progress(jobs[i].name, static_cast<int>(i), static_cast<int>(jobs.size()));
      if (jobs[i].of_all_ranks || reports()) jobs[i].run();
    }
    if (world_ != nullptr) world_->group().barrier();
    if (!reports()) return {};
    if (options_.progress)
      options_.progress("", static_cast<int>(jobs.size()), static_cast<int>(jobs.size()));
    finish(&machine, &result.notes);
    result.seconds = watch.seconds();
    return result;
  }

 private:
  struct Job {
    std::string name;
    std::function<void()> run;
    bool of_all_ranks = false;  // else the first rank's
  };

  bool reports() const { return world_ == nullptr || world_->rank() == 0; }

  bool has_processes() const { return world_ != nullptr && options_.processes; }

  int devices_per_node() const {
    int most = hosts_.on_first();
    for (const int ranks : sizes_) most = std::max(most, ranks);
    return kind_ == DeviceKind::Cuda ? std::max(cuda_count(), 1) : most;
  }

  void check_ranks() const {
    const bool on_ranks = has_processes();
    if (on_ranks && !options_.backend.empty() && world_->backend() != options_.backend)
      throw UsageError(
          text("--backend ", options_.backend, ": the ranks communicate by ", world_->backend()),
          {.hint = "This libtorch may not have it: trestle doctor."});
    for (const int ranks : sizes_) {
      if (on_ranks && ranks > hosts_.on_first())
        throw UsageError(text("--ranks ", ranks, ": the first rank's machine has ",
                              counted(hosts_.on_first(), "rank")),
                         {.hint = "Start more ranks on it, or leave --ranks out."});
      if (kind_ == DeviceKind::Cuda && ranks > cuda_count())
        throw UsageError(text("--ranks ", ranks, ": this machine has ",
                              counted(cuda_count(), "GPU"), ", and each rank needs its own"));
    }
  }

  void add_device_jobs(plan::Machine* machine, std::vector<std::string>* notes,
                       std::vector<Job>* jobs) {
    jobs->push_back({"start of a kernel",
                     [=, this] { machine->fixed.kernel_start = kernel_start(device_, depth_); }});
    jobs->push_back({"memory bandwidth",
                     [=, this] { machine->memory_bandwidth = memory_bandwidth(device_, depth_); }});
    for (const std::string type : {"fp32", "bf16", "int8"})
      for (const plan::ProductShape shape :
           {plan::ProductShape::Square, plan::ProductShape::Tall, plan::ProductShape::Thin})
        jobs->push_back({text(to_string(shape), " products in ", type), [=, this] {
                           std::string why;
                           auto table = time_products(shape, type, device_, depth_, &why);
                           if (!table.sizes.empty())
                             machine->products.push_back(std::move(table));
                           else
                             notes->push_back(
                                 text("no ", to_string(shape), " products in ", type, ": ", why));
                         }});
    for (const std::string& name : measured_optimizers())
      jobs->push_back({name, [=, this] {
                         machine->optimizers.push_back(time_optimizer(name, device_, depth_));
                       }});
    add_copy_jobs(machine, jobs);
    jobs->push_back({"a transformer's block", [=, this] {
                       optimizer_start_ = optimizer_start(device_, depth_);
                       const auto type =
                           fastest_type(*machine) == "bf16" ? at::kBFloat16 : at::kFloat;
                       block_ = time_block_parts(device_, type, depth_);
                     }});
  }

  void add_copy_jobs(plan::Machine* machine, std::vector<Job>* jobs) {
    const auto add = [&](plan::CopyPath path, at::Device from, at::Device to) {
      jobs->push_back({text("copies ", to_string(path)), [=, this] {
                         machine->copies.push_back(time_copies(path, from, to, depth_));
                       }});
    };
    add(plan::CopyPath::OnDevice, device_, device_);
    if (kind_ == DeviceKind::Cpu) return;
    jobs->push_back({"memory bandwidth of the host", [=, this] {
                       machine->host.emplace().memory_bandwidth =
                           memory_bandwidth(at::kCPU, depth_);
                     }});
    add(plan::CopyPath::ToHost, device_, at::kCPU);
    add(plan::CopyPath::FromHost, at::kCPU, device_);
    if (kind_ == DeviceKind::Virtual || cuda_count() > 1)
      add(plan::CopyPath::BetweenDevices, device_of(kind_, 0), device_of(kind_, 1));
  }

  static constexpr plan::Exchange collectives[] = {
      plan::Exchange::AllReduce, plan::Exchange::AllGather, plan::Exchange::ReduceScatter};

  void add_thread_jobs(plan::Machine* machine, std::vector<Job>* jobs) {
    if (!options_.threads || kind_ == DeviceKind::Cuda) return;
    const auto add = [&](plan::Exchange kind, int ranks) {
      jobs->push_back({text(to_string(kind), " of ", ranks, " threads"), [=, this] {
                         const OnCores all(hosts_.cores);
                         auto tables = spawn(ranks,
                                             [&](World& world) {
                                               return time_messages_by_size(
                                                   world.group(), kind,
                                                   device_of(kind_, world.rank()), depth_);
                                             },
                                             {.threads = 1});
                         tables[0].over = "threads";
                         machine->messages.push_back(std::move(tables[0]));
                       }});
    };
    for (const int ranks : sizes_)
      for (const plan::Exchange kind : collectives) add(kind, ranks);
    if (!sizes_.empty()) add(plan::Exchange::Send, 2);
  }

  // All ranks make each group once, in the same order.
  comm::Group group_of(const std::vector<int>& ranks) {
    const auto [known, is_new] = groups_.try_emplace(ranks);
    if (is_new) known->second = world_->make_group(ranks);
    return known->second;
  }

  void add_process_jobs(plan::Machine* machine, std::vector<Job>* jobs) {
    if (!has_processes()) return;
    const auto add = [&](plan::Exchange kind, const std::vector<int>& ranks, plan::Reach reach) {
      const comm::Group group = group_of(ranks);
      jobs->push_back({text(to_string(kind), " of ", ranks.size(), " processes",
                            reach == plan::Reach::Between ? ", each on a host of its own" : ""),
                       [=, this] {
                         if (!group.valid()) return;
                         auto table = time_messages_by_size(group, kind, device_, depth_);
                         table.over = world_->backend();
                         table.reach = reach;
                         machine->messages.push_back(std::move(table));
                       },
                       true});
    };
    const std::vector<int>& first = hosts_.ranks.front();
    const auto begin = [](const std::vector<int>& ranks, int count) {
      return std::vector<int>(ranks.begin(), ranks.begin() + count);
    };
    for (const int size : sizes_)
      for (const plan::Exchange kind : collectives)
        add(kind, begin(first, size), plan::Reach::Inside);
    if (first.size() > 1) add(plan::Exchange::Send, begin(first, 2), plan::Reach::Inside);
    std::vector<int> of_each;  // one rank of each host
    for (const auto& ranks : hosts_.ranks) of_each.push_back(ranks.front());
    for (const int size : default_group_sizes(static_cast<int>(of_each.size())))
      for (const plan::Exchange kind : collectives)
        add(kind, begin(of_each, size), plan::Reach::Between);
    if (of_each.size() > 1) add(plan::Exchange::Send, begin(of_each, 2), plan::Reach::Between);
  }

  void finish(plan::Machine* machine, std::vector<std::string>* notes) const {
    machine->name = options_.name;
    machine->devices_per_node = devices_per_node();
    plan::MeasuredOn on = this_machine();
    on.cores = std::max<int>(1, static_cast<int>(hosts_.cores.size()));
    on.devices = text(options_.device, ", ", counted(threads_, "thread"), " per operator, ",
                      counted(static_cast<std::int64_t>(hosts_.ranks.size()), "host"));
    machine->about = text(on.cpu, ", ", counted(on.cores, "core"), ", ",
                          format_bytes(static_cast<Bytes>(on.memory)), " of memory",
                          on.gpu.empty() ? "" : ", " + on.gpu);
    set_memory(on, machine);
    set_host(on, machine);
    machine->measured_on = std::move(on);
    const std::string type = fastest_type(*machine);
    derive_transformer(block_, type, optimizer_start_, machine);
    const std::string transport = counted_transport(*machine);
    derive_links(transport, machine);
    if (transport.empty())
      notes->push_back("no messages: one rank alone, so the links are assumed");
    else if (hosts_.ranks.size() == 1)
      notes->push_back("no second host took part, so the link between nodes is assumed");
  }

  // For offload. A CPU's devices have the host's memory already.
  static void set_host(const plan::MeasuredOn& on, plan::Machine* machine) {
    if (!machine->host) return;
    machine->host->memory = {
        .value = on.memory, .origin = plan::Origin::Measured, .from = "the machine's memory"};
    for (const plan::CopyTable& copy : machine->copies)
      if (copy.path == plan::CopyPath::ToHost)
        machine->host->bandwidth = {.value = copy.bytes.back() / copy.seconds.back(),
                                    .origin = plan::Origin::Measured,
                                    .from = "the largest copy to the host",
                                    .spread = copy.spread.back()};
  }

  void set_memory(const plan::MeasuredOn& on, plan::Machine* machine) const {
    const auto figure = [](double value, const std::string& from) {
      return plan::Figure{.value = value, .origin = plan::Origin::Measured, .from = from};
    };
    machine->fixed.process_memory =
        figure(resident_at_start_, "resident memory of a process before the first tensor");
    if (kind_ != DeviceKind::Cuda) {
      machine->memory = figure(
          on.memory / machine->devices_per_node,
          text("the machine's memory, shared by ", counted(machine->devices_per_node, "device")));
      machine->reserved = figure(std::min(resident_at_start_, machine->memory.value / 2),
                                 "resident memory of a process before the first tensor");
      return;
    }
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device_.type());
    allocator->emptyCache();
    const auto [free, total] = allocator->getMemoryInfo(device_.index());
    const MemoryUsage used = memory_usage(device_);
    const double context =
        static_cast<double>(total) - static_cast<double>(free) - static_cast<double>(used.current);
    machine->memory = figure(static_cast<double>(total), "the device's memory");
    machine->reserved =
        figure(std::clamp(context, 0.0, static_cast<double>(total) / 2),
               "the device's memory in use beside tensors: contexts, caches and workspaces");
    machine->fixed.context_memory = machine->reserved;
  }

  const World* world_;
  CalibrateOptions options_;
  CalibrationDepth depth_;
  DeviceKind kind_;
  Hosts hosts_;
  std::vector<int> sizes_;  // of groups
  std::map<std::vector<int>, comm::Group> groups_;
  at::Device device_ = at::kCPU;
  int threads_ = 1;
  double resident_at_start_ = 0;
  plan::Figure optimizer_start_;
  BlockCosts block_;
};

}  // namespace

std::vector<int> default_group_sizes(int ranks) {
  std::vector<int> sizes;
  for (int size = 2; size <= ranks; size *= 2) sizes.push_back(size);
  if (ranks > 1 && sizes.back() != ranks) sizes.push_back(ranks);
  return sizes;
}

int ranks_of_device(const std::string& device) {
  if (kind_of(device) == DeviceKind::Cuda) return cuda_count();
  return fewest_ranks_of_cpu;
}

Calibration calibrate(const World* world, const CalibrateOptions& options) {
  return Calibrator(world, options).run();
}

}  // namespace trestle::train
