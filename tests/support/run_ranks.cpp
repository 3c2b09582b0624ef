#include "tests/support/run_ranks.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <thread>

namespace trestle::testing {

void run_ranks(int ranks, const RankFunction& function, std::chrono::milliseconds deadline) {
  spawn(ranks, function, {.deadline = deadline});
}

int free_port() {
  const int number = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(number, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(number, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no free port");
  close(number);
  return ntohs(address.sin_port);
}

launch::RankEnvironment rank_environment(int rank, int size, int port) {
  launch::RankEnvironment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_size = size;
  environment.port = port;
  environment.source = "variables";
  return environment;
}

void run_gloo_ranks(int ranks, const RankFunction& function, std::chrono::milliseconds deadline) {
  const int port = free_port();
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world =
            init({.deadline = deadline, .environment = rank_environment(rank, ranks, port)});
        function(world);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

void run_process_ranks(int ranks, const RankFunction& function,
                       std::chrono::milliseconds deadline) {
  const auto processes = run_rank_processes(ranks, [&] {
    World world = init({.deadline = deadline});
    function(world);
  });
  for (std::size_t rank = 0; rank < processes.size(); ++rank)
    EXPECT_EQ(processes[rank].exit_code, 0)
        << "rank " << rank << " (signal " << processes[rank].signal << ") said:\n"
        << processes[rank].output;
}

}  // namespace trestle::testing
