#include "benchmarks/process_usage.h"

#include <sys/resource.h>

namespace benchmarks {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

ProcessUsage ProcessUsage::now() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return {.waits = static_cast<double>(usage.ru_nvcsw),
          .preemptions = static_cast<double>(usage.ru_nivcsw),
          .page_faults = static_cast<double>(usage.ru_minflt),
          .system_seconds = seconds(usage.ru_stime),
          .user_seconds = seconds(usage.ru_utime)};
}

ProcessUsage operator-(const ProcessUsage& a, const ProcessUsage& b) {
  return {.waits = a.waits - b.waits,
          .preemptions = a.preemptions - b.preemptions,
          .page_faults = a.page_faults - b.page_faults,
          .system_seconds = a.system_seconds - b.system_seconds,
          .user_seconds = a.user_seconds - b.user_seconds};
}

nlohmann::json per_step(const ProcessUsage& usage, int steps) {
  return {{"waits", usage.waits / steps},
          {"preemptions", usage.preemptions / steps},
          {"page_faults", usage.page_faults / steps},
          {"system_seconds", usage.system_seconds / steps},
          {"user_seconds", usage.user_seconds / steps}};
}

}  // namespace benchmarks
