#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/run.h"

// Inside of the command line: each verb adds itself in a file of its own and does one thing.
namespace CLI {
class App;
}

namespace trestle::app {

// What the program does once the arguments are read; the chosen verb
// sets it. Returns the exit code.
using Action = std::function<int()>;

void add_train(CLI::App& app, Action& action, const RunOptions& options);
void add_predict(CLI::App& app, Action& action, const RunOptions& options);
void add_view(CLI::App& app, Action& action);
void add_data(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);

// "trestle train: unknown flag --epoch; did you mean '--epochs'?" for the
// first word that no verb knows.
std::string unknown_argument(const CLI::App& app, const std::vector<std::string>& words);

// The examples at the end of a verb's --help.
std::string examples(const std::vector<std::string>& lines);

}  // namespace trestle::app
