#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

// launch_helper as a separate process.
namespace trestle::launch {

using Words = std::vector<std::string>;

struct Outcome {
  int code = -1;  // exit code, or 128 + the signal that ended it
  std::string out, err;
  double seconds = 0;
};

class StartedLauncher {
 public:
  struct With {
    std::string in = "/dev/null";  // the file of its standard input
    std::string out = {};          // standard output's file; empty = into Outcome
    std::string err = {};
    Words program = {LAUNCH_HELPER};
  };
  explicit StartedLauncher(const Words& arguments, With with);
  explicit StartedLauncher(const Words& arguments) : StartedLauncher(arguments, With{}) {}
  ~StartedLauncher();
  StartedLauncher(const StartedLauncher&) = delete;
  StartedLauncher& operator=(const StartedLauncher&) = delete;

  pid_t process() const { return child_; }
  void send(int signal) const;
  // Waits until standard output contains `words` `times` times; fails the test after 20 s.
  void wait_for(const std::string& words, int times = 1) const;
  std::string out() const;
  // Kills the launcher and fails the test if it does not end within 60 s.
  Outcome wait();

 private:
  std::filesystem::path folder_;
  pid_t child_ = -1;
  double begin_ = 0;
};

Outcome run_launcher(const Words& arguments, StartedLauncher::With with);
Outcome run_launcher(const Words& arguments);

// Arguments for `sh -c script` on n ranks: {"-n", "3", flags..., "--", "sh", "-c", script}.
Words on_ranks(int ranks, const std::string& script, const Words& flags = {});

int count_of(const std::string& words, const std::string& text);
Words lines_of(const std::string& text);
// Whether a process exists and is no zombie.
bool is_alive(pid_t process);
// Waits up to 10 s until none of them is alive.
bool all_gone(const std::vector<pid_t>& processes);
// The numbers after "pid " in the lines.
std::vector<pid_t> processes_in(const std::string& text);

}  // namespace trestle::launch
