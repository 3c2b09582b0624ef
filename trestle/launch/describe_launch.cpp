#include <string_view>

#include "trestle/base/text.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_command.h"

namespace trestle::launch {

namespace {

std::string quoted(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string describe_launch(const LaunchOptions& options) {
  check(options);
  find_program(options.program);
  std::string out;
  for (const RankCommand& command : rank_commands(options, rendezvous_of(options), 0)) {
    out += "env";
    for (const auto& [name, value] : command.variables) out += " " + quoted(text(name, "=", value));
    if (!command.cores.empty()) out += " taskset -c " + join(command.cores, ",");
    out += " " + quoted(options.program);
    for (const std::string& argument : options.arguments) out += " " + quoted(argument);
    out += "\n";
  }
  return out;
}

}  // namespace trestle::launch
