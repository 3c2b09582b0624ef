#include "trestle/cli/plan_machine.h"

#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/train/calibrate/this_machine.h"

namespace trestle::cli {

namespace {

// "profile", or where and when the file was measured.
std::string origin_of_file(const plan::Machine& machine) {
  if (!machine.measured_on) return "profile";
  const auto& measured = *machine.measured_on;
  const bool here = plan::differences_of(measured, train::this_machine()).empty();
  return text(here ? "measured here on " : "measured on another machine or version, ",
              measured.date);
}

std::optional<plan::Machine> machine_in(const std::filesystem::path& path) {
  try {
    const std::string words = read_text_file(path);
    if (words.find("[machine]") == std::string::npos) return std::nullopt;
    return plan::parse_machine(words, path.string());
  } catch (const Error&) {  // --machine tells what is wrong with it
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::string> known_machines() {
  std::map<std::string, std::string> known;
  std::set<std::filesystem::path> read;
  std::error_code none;
  for (const std::filesystem::path& folder : plan::machine_folders())
    for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
      const std::filesystem::path& path = entry.path();
      if (path.extension() != ".toml" || !entry.is_regular_file(none)) continue;
      if (!read.insert(std::filesystem::weakly_canonical(path, none)).second) continue;
      if (const auto machine = machine_in(path))
        known.try_emplace(path.stem().string(), origin_of_file(*machine));
    }
  std::vector<std::string> words;
  for (const auto& [name, origin] : known) words.push_back(text(name, " (", origin, ")"));
  return words;
}

plan::Machine read_planned_machine(const MachineArgument& argument) {
  plan::Machine machine = plan::read_machine(argument.name);
  if (argument.for_other_machine && !machine.measured_on)
    throw UsageError(text("--for-other-machine has no effect with ", argument.name,
                          ", which was not measured by trestle calibrate"),
                     {.hint = "Leave it out."});
  plan::check_measured_on(
      machine.measured_on, train::this_machine(), argument.name,
      argument.for_other_machine ? plan::OtherMachine::Allow : plan::OtherMachine::Refuse);
  return machine;
}

}  // namespace trestle::cli
