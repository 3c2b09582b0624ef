#include "trestle/cli/background_output.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace trestle::cli {

struct BackgroundOutput::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;  // to be written
  bool writes = false;  // the thread has taken some
  bool failed = false;
  bool ends = false;

  bool is_written() const { return failed || (waiting.empty() && !writes); }
};

namespace {

bool write_all(std::string_view words) {
  while (!words.empty()) {
    const ssize_t count = write(STDOUT_FILENO, words.data(), words.size());
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) words.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// The thread that reads the input gets the signals, as without this one.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

BackgroundOutput::BackgroundOutput() : state_(std::make_shared<State>()) {
  state_->failed = !std::cout.flush();
  before_ = std::cout.rdbuf(this);
  std::thread([state = state_] {
    block_signals();
    std::unique_lock lock(state->mutex);
    while (true) {
      state->changed.wait(lock, [&] { return state->ends || !state->waiting.empty(); });
      if (state->waiting.empty()) return;
      const std::string words = std::exchange(state->waiting, {});
      state->writes = true;
      lock.unlock();
      const bool written = write_all(words);
      lock.lock();
      state->writes = false;
      state->failed = state->failed || !written;
      state->changed.notify_all();
    }
  }).detach();
}

BackgroundOutput::~BackgroundOutput() {
  written_within(std::chrono::seconds(1));
  bool failed = false;
  {
    const std::lock_guard lock(state_->mutex);
    failed = state_->failed;
    state_->ends = true;
  }
  state_->changed.notify_all();
  std::cout.rdbuf(before_);
  if (failed) std::cout.setstate(std::ios::badbit);
}

bool BackgroundOutput::written_within(std::chrono::milliseconds most) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, most, [&] { return state_->is_written(); });
}

std::streamsize BackgroundOutput::xsputn(const char* words, std::streamsize count) {
  const std::lock_guard lock(state_->mutex);
  if (state_->failed) return 0;
  state_->waiting.append(words, static_cast<std::size_t>(count));
  state_->changed.notify_all();
  return count;
}

BackgroundOutput::int_type BackgroundOutput::overflow(int_type letter) {
  if (traits_type::eq_int_type(letter, traits_type::eof())) return traits_type::not_eof(letter);
  const char one = traits_type::to_char_type(letter);
  return xsputn(&one, 1) == 1 ? letter : traits_type::eof();
}

// Waits a moment, so that output comes before an error message that is printed behind it.
int BackgroundOutput::sync() {
  constexpr std::chrono::milliseconds moment{100};
  written_within(moment);
  const std::lock_guard lock(state_->mutex);
  return state_->failed ? -1 : 0;
}

}  // namespace trestle::cli
