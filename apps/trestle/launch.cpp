#include "trestle/launch/launcher.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string_view>

#include "apps/trestle/verbs.h"
#include "trestle/base/duration.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::app {

namespace {

constexpr const char* name = "launch";

struct LaunchArguments {
  launch::LaunchOptions options;
  std::string grace;
  std::string log_folder;
  std::string prefix = "on";
  std::string binding = "cores";
  bool json = false;
  bool dry_run = false;
  std::string program;  // for --help alone
};

launch::LaunchOptions read_command(const CLI::App& verb, const LaunchArguments& arguments,
                                   const std::vector<std::string>& command) {
  launch::LaunchOptions options = arguments.options;
  if (command.empty())
    throw UsageError("there is no program to start",
                     {.hint = "For example: trestle launch -n 4 -- ./my_program --its-flags"});
  options.program = command[0];
  options.arguments.assign(command.begin() + 1, command.end());
  if (!arguments.grace.empty()) {
    try {
      options.grace = parse_duration(arguments.grace);
    } catch (const UsageError& error) {
      throw UsageError(text("--grace: ", error.what()));
    }
  }
  if (options.nodes > 1 && verb.get_option("--node-rank")->count() == 0)
    throw UsageError(text("--nodes ", options.nodes, " needs --node-rank"),
                     {.hint = text("From 0 to ", options.nodes - 1,
                                   ", another one on each machine; 0 on that of --rendezvous.")});
  options.log_folder = arguments.log_folder;
  if (!arguments.log_folder.empty()) refuse_without_effect(verb, {"--prefix"}, "with --log-dir");
  if (arguments.json) refuse_without_effect(verb, {"--prefix"}, "with --json");
  options.lines = arguments.json              ? launch::Lines::Json
                  : arguments.prefix == "off" ? launch::Lines::Plain
                                              : launch::Lines::Prefixed;
  options.binding = arguments.binding == "off" ? launch::Binding::Off : launch::Binding::Cores;
  return options;
}

int perform_launch(const CLI::App& verb, const LaunchArguments& arguments,
                   const std::vector<std::string>& command) {
  const launch::LaunchOptions options = read_command(verb, arguments, command);
  if (!arguments.dry_run) return launch::launch(options);
  std::cout << launch::describe_launch(options) << std::flush;
  return 0;
}

void add_flags(CLI::App& verb, const std::shared_ptr<LaunchArguments>& arguments) {
  const auto number = [&](const char* flag, int launch::LaunchOptions::*which, Range range,
                          const char* help) {
    add_number(
        verb, flag, range,
        [arguments, which](std::int64_t n) { arguments->options.*which = static_cast<int>(n); },
        help)
        ->type_name("N");
  };
  number("-n,--ranks", &launch::LaunchOptions::ranks, {1, 1000},
         "How many processes of this machine (default 1)");
  number("--nodes", &launch::LaunchOptions::nodes, {1, 1000},
         "How many machines; start it on each, with the same -n (default 1)");
  number("--node-rank", &launch::LaunchOptions::node_rank, {0, 999},
         "Which of them this is, from 0");
  verb.add_option("--rendezvous", arguments->options.rendezvous,
                  "Node 0, where the ranks meet; port 29500 if none is given (default: this "
                  "machine, at a port that is free)")
      ->type_name("HOST[:PORT]");
  number("--max-restarts", &launch::LaunchOptions::max_restarts, {0, 1'000'000},
         "How often all ranks are started anew after one failed (default 0)");
  verb.add_option("--grace", arguments->grace,
                  "How long the others have after SIGTERM when one has failed (default 10s)")
      ->type_name("TIME");
  verb.add_option("--prefix", arguments->prefix, "[2] before each line of rank 2 (default on)")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off");
  verb.add_option("--log-dir", arguments->log_folder,
                  "What rank 2 writes goes into rank_2.log there, and not to the screen")
      ->type_name("FOLDER");
  verb.add_option("--bind", arguments->binding,
                  "cores: each rank has its share of them (the default). off: all share all")
      ->check(CLI::IsMember({"cores", "off"}))
      ->type_name("HOW");
  verb.add_flag("--json", arguments->json, "Print one JSON object a line: starts, lines, endings");
  verb.add_flag("--dry-run", arguments->dry_run, "Print the command of each rank, start nothing");
}

}  // namespace

int take_command(const CLI::App& app, int argc, char** argv, std::vector<std::string>& command) {
  if (argc < 2 || std::string_view(argv[1]) != name) return argc;
  const CLI::App* verb = app.get_subcommand(name);
  int at = 2;
  while (at < argc && argv[at][0] == '-' && std::string_view(argv[at]) != "--") {
    const CLI::Option* option = verb->get_option_no_throw(argv[at]);
    at += option != nullptr && option->get_items_expected_min() > 0 ? 2 : 1;
  }
  if (at >= argc) return argc;
  command.assign(argv + (std::string_view(argv[at]) == "--" ? at + 1 : at), argv + argc);
  return at;
}

void add_launch(CLI::App& app, Action& action, const std::vector<std::string>& command) {
  CLI::App* verb = app.add_subcommand(
      name, "Start a program on several processes, as the ranks of one run (as torchrun does)");
  auto arguments = std::make_shared<LaunchArguments>();
  verb->add_option("PROGRAM", arguments->program,
                   "What to start, best behind '--': all that follows is its own")
      ->type_name("ARGUMENTS...");
  add_flags(*verb, arguments);
  verb->footer(
      examples({"trestle launch -n 4 -- ./my_program --its-flags",
                "trestle launch -n 4 --max-restarts 3 --log-dir logs -- ./my_program",
                "trestle launch -n 2 -- python3 train.py          # reads the same variables",
                "trestle launch -n 8 --nodes 2 --node-rank 0 --rendezvous node0 -- ./my_program",
                "trestle launch -n 8 --nodes 2 --node-rank 1 --rendezvous node0 -- ./my_program"}) +
      "Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and what else torchrun sets, so "
      "that\neither starts the other's programs; and OMP_NUM_THREADS, unless you set it.\n"
      "Ctrl-C stops all ranks, a second one kills them. When a rank fails the others are ended.\n"
      "Exit code: that of the first rank that failed, 128 + the signal if one ended it; 0 when all "
      "ended\nwith 0; 2 where the program is not there or cannot be started.\n");
  verb->callback([verb, arguments, &action, &command] {
    action = [verb, arguments, &command] { return perform_launch(*verb, *arguments, command); };
  });
}

}  // namespace trestle::app
