#include "trestle/cli/without_signals.h"

#include <csignal>
#include <exception>
#include <thread>

namespace trestle::cli {

void run_without_signals(const std::function<void()>& work) {
  std::exception_ptr failure;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread thread([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trestle::cli
