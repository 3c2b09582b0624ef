#pragma once

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/message_of.h"
#include "trestle/nn/layers.h"
#include "trestle/pipeline/pipeline.h"

// Shared helpers of the pipeline's tests.
namespace trestle::support {

// Ends the program with a message after 30 s, so that a deadlock shows as a failed test. No test
// computes for a second.
class WatchDog {
 public:
  explicit WatchDog(std::string what, std::chrono::seconds limit = std::chrono::seconds(30))
      : thread_([this, what = std::move(what), limit] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, limit, [this] { return done_; })) return;
          std::fprintf(stderr, "no end of '%s' after %d s: deadlock\n", what.c_str(),
                       static_cast<int>(limit.count()));
          std::fflush(stderr);
          std::_Exit(42);
        }) {}
  ~WatchDog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  WatchDog(const WatchDog&) = delete;
  WatchDog& operator=(const WatchDog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;  // last: starts once all members exist
};

// Rows and their classes for nets of one width, equal on each call.
inline constexpr std::int64_t width = 6;
inline constexpr std::int64_t samples = 8;

inline at::Tensor input(std::int64_t count = samples, at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(4);
  return torch::randn({count, width}, dtype);
}
inline at::Tensor input(at::ScalarType dtype) { return input(samples, dtype); }
inline at::Tensor target(std::int64_t count = samples) {
  torch::manual_seed(5);
  return torch::randint(width, {count});
}

// The largest absolute difference of two tensors on any devices.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().cpu() - b.detach().cpu()).abs().max().item<double>();
}

// `count` linear layers of `width` with tanh between them, 2 * count - 1 layers, and `width`
// classes. In double precision, with equal weights on each call.
inline nn::Layers chain(int count, int width = 6, std::uint64_t seed = 5) {
  torch::manual_seed(seed);
  nn::Layers net;
  for (int i = 0; i < count; ++i) {
    torch::nn::Linear linear(width, width);
    linear->to(at::kDouble);
    net.add("linear" + std::to_string(i), linear);
    if (i + 1 < count) net.add("tanh" + std::to_string(i), torch::nn::Tanh());
  }
  return net;
}

// The route of the layers' values from stage `from` to the next.
inline schedule::Route main_route(int from) { return {from, from + 1, false, "main"}; }

inline at::Tensor add(at::Tensor x, at::Tensor skip) { return x + skip; }

}  // namespace trestle::support
