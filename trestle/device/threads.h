#pragma once

// How many threads one operator uses. libtorch keeps that number per thread.
namespace trestle {

// Cores this process may run on (its affinity mask), at least 1.
int core_count();

// The most threads of one operator that are accepted: more than this many on these cores only wait
// for each other, and thousands stop a machine.
int most_threads();

// Intra-op threads of the calling thread from the next operator on, and the default of threads that
// start later, among them the devices' backward threads, which take it once, at the first backward.
// Costs about 35 ns, so that a worker can change it per action. Throws UsageError for count < 1 and
// for more than most_threads().
void set_worker_threads(int count);

}  // namespace trestle
