#pragma once

#include <string>
#include <vector>

namespace trestle::launch {

// How a process ended.
struct Ending {
  int code = 0;
  int signal = 0;  // not 0: which one killed it

  bool well() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal == 0 ? code : 128 + signal; }  // as shells have it
};

// "9 (SIGKILL)".
std::string signal_name(int signal);

// "ended with code 3", "was killed by signal 9 (SIGKILL)".
std::string in_words(const Ending& ending);

// {0, 1, 3} -> "ranks 0, 1, 3"; {2} -> "rank 2"; four and more in a row: "ranks 0 to 62".
std::string ranks_in_words(const std::vector<int>& ranks);

}  // namespace trestle::launch
