#pragma once

#include <string>
#include <vector>

namespace trestle::launch {

// The exit code of programs for an invalid request: a flag, a recipe, a file.
inline constexpr int usage_error = 2;

// How a process ended.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // the signal that killed it; 0 = none

  bool success() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal == 0 ? code : 128 + signal; }  // as in shells
};

// "9 (SIGKILL)".
std::string signal_name(int signal);

// "exited with code 3", "was killed by signal 9 (SIGKILL)".
std::string describe(const ExitStatus& status);

// {0, 1, 3} -> "ranks 0, 1, 3"; {2} -> "rank 2"; four or more consecutive ranks: "ranks 0 to 62".
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace trestle::launch
