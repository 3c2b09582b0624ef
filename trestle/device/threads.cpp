#include "trestle/device/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

int core_count() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

int most_threads() { return std::max(64, 4 * core_count()); }

void set_worker_threads(int count) {
  if (count < 1 || count > most_threads())
    throw UsageError(text("cannot run an operator on ", count, " threads"),
                     {.hint = text("Give 1 to ", most_threads(), "; this process has ",
                                   core_count(), " cores.")});
  // A thread's first parallel operator takes over the process's default, whatever was
  // set before: have that done now.
  at::get_num_threads();
  at::set_num_threads(count);
}

}  // namespace trestle
