#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_command.h"

namespace trestle::launch {

std::string describe_launch(const LaunchOptions& options) {
  check_options(options);
  find_program(options.program);
  std::string out;
  for (const RankCommand& command : rank_commands(options, rendezvous_of(options), 0)) {
    out += "env";
    for (const auto& [name, value] : command.variables)
      out += " " + shell_word(text(name, "=", value));
    if (!command.cores.empty()) out += " taskset -c " + join(command.cores, ",");
    out += " " + shell_word(options.program);
    for (const std::string& argument : options.arguments) out += " " + shell_word(argument);
    out += "\n";
  }
  return out;
}

}  // namespace trestle::launch
