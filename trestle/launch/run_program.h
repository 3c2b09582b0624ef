#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/launch/exit_status.h"

// A program that is run for its output. No torch.
namespace trestle::launch {

struct ProgramEnd {
  ExitStatus status;
  std::string output = {};  // of its standard output
  std::string errors = {};  // of its standard error
};

// Runs a program with its arguments, without standard input, to its end. `words` begins with its
// path. `should_stop` is called several times a second. Once it returns true the program gets
// SIGTERM, three seconds later its process group gets SIGKILL, and nothing is returned: a launcher
// takes its ranks along. The program ends with this process. Throws FileError for errors of the
// system, as for a program that cannot be started.
//
//   const auto end = launch::run_program({"/bin/echo", "hello"});
//   end->output;  // "hello\n"
std::optional<ProgramEnd> run_program(std::vector<std::string> words,
                                      const std::function<bool()>& should_stop = {});

}  // namespace trestle::launch
