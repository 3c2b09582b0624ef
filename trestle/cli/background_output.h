#pragma once

#include <chrono>
#include <memory>
#include <streambuf>

namespace trestle::cli {

// While it exists, a thread writes what std::cout gets: the reader of the output may be slow, as a
// pager is, and the caller does not wait for it. A failed write makes std::cout bad, as without it.
//
//   const BackgroundOutput output;
//   std::cout << "words" << std::flush;
//   while (!output.written_within(std::chrono::seconds(1))) std::cerr << "it waits for its reader";
class BackgroundOutput : private std::streambuf {
 public:
  BackgroundOutput();
  // Waits a second at most: call written_within() before.
  ~BackgroundOutput() override;
  BackgroundOutput(const BackgroundOutput&) = delete;
  BackgroundOutput& operator=(const BackgroundOutput&) = delete;

  // Waits for `most` until all output so far was written or has failed. Returns whether it was.
  bool written_within(std::chrono::milliseconds most) const;

 private:
  struct State;
  std::streamsize xsputn(const char* words, std::streamsize count) override;
  int_type overflow(int_type letter) override;
  int sync() override;

  std::shared_ptr<State> state_;  // the thread's too, which may outlive this
  std::streambuf* before_;
};

}  // namespace trestle::cli
