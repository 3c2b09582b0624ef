#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trestle/checkpoint/files/save_ranks.h"

// Ranks as threads with a minimal all-gather of strings, independent of trestle's communication.
namespace trestle::checkpoint {

class Gathering {
 public:
  explicit Gathering(int size) : given_(static_cast<std::size_t>(size)) {}

  std::vector<std::string> gather(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    given_[static_cast<std::size_t>(rank)] = mine;
    const int round = round_;
    if (++arrived_ == static_cast<int>(given_.size())) {
      taken_ = given_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return taken_;
    }
    changed_.wait(lock, [&] { return round_ != round || gone_; });
    if (round_ == round) throw std::runtime_error("a rank is gone");
    return taken_;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_, taken_;
  int arrived_ = 0, round_ = 0;
  bool gone_ = false;
};

// Calls work(ranks) on each rank, and returns each rank's exception text, "" for none.
inline std::vector<std::string> on_ranks(int size,
                                         const std::function<void(const SaveRanks&)>& work) {
  Gathering gathering(size);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        work(
            {.rank = rank, .size = size, .all_gather = [&gathering, rank](const std::string& mine) {
               return gathering.gather(rank, mine);
             }});
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        gathering.leave();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace trestle::checkpoint
