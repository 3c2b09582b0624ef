#include "trestle/launch/launcher.h"

#include <iostream>
#include <memory>
#include <string_view>

#include "trestle/base/duration.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/cli/verbs.h"
#include "trestle/comm/tell_machines.h"

namespace trestle::cli {

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
  std::string program;  // only for --help
};

launch::LaunchOptions read_options(const Verb& verb, const LaunchArguments& arguments,
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
  if (options.nodes > 1 && !verb.given("--node-rank"))
    throw UsageError(
        text("--nodes ", options.nodes, " needs --node-rank"),
        {.hint = text("Give 0 on the machine of --rendezvous, and another number up to ",
                      options.nodes - 1, " on each other machine.")});
  options.tell_machines = comm::tell_machines;
  options.log_folder = arguments.log_folder;
  if (!arguments.log_folder.empty()) refuse_without_effect(verb, {"--prefix"}, "with --log-dir");
  if (arguments.json) refuse_without_effect(verb, {"--prefix"}, "with --json");
  options.lines = arguments.json              ? launch::Lines::Json
                  : arguments.prefix == "off" ? launch::Lines::Plain
                                              : launch::Lines::Prefixed;
  options.binding = arguments.binding == "off" ? launch::Binding::Off : launch::Binding::Cores;
  return options;
}

int perform_launch(const Verb& verb, const LaunchArguments& arguments,
                   const std::vector<std::string>& command) {
  const launch::LaunchOptions options = read_options(verb, arguments, command);
  if (!arguments.dry_run) return launch::launch(options);
  std::cout << launch::describe_launch(options) << std::flush;
  return 0;
}

void add_flags(Verb verb, const std::shared_ptr<LaunchArguments>& arguments) {
  const auto number = [&](const char* flag, int launch::LaunchOptions::*which, Range range,
                          const char* help) {
    verb.add_number(
            flag, range,
            [arguments, which](std::int64_t n) { arguments->options.*which = static_cast<int>(n); },
            help)
        .type("N");
  };
  number("-n,--ranks", &launch::LaunchOptions::ranks, {1, 1000},
         "Number of processes on this machine (default 1)");
  number("--nodes,--nnodes", &launch::LaunchOptions::nodes, {1, 1000},
         "Number of machines; start trestle launch on each, with the same -n (default 1)");
  number("--node-rank,--node_rank", &launch::LaunchOptions::node_rank, {0, 999},
         "The number of this machine, from 0");
  verb.add(
          "--rendezvous", arguments->options.rendezvous,
          "The machine with node rank 0, where the ranks meet; the default port is 29500 (default: "
          "this machine and a free port)")
      .type("HOST[:PORT]");
  number("--max-restarts", &launch::LaunchOptions::max_restarts, {0, 1'000'000},
         "How many times to restart all ranks after one failed (default 0)");
  verb.add("--grace", arguments->grace,
           "When a rank has failed: the time from SIGTERM to SIGKILL for the other ranks (default "
           "10s)")
      .type("TIME");
  verb.add("--prefix", arguments->prefix, "Print [2] before each line of rank 2 (default on)")
      .one_of({"on", "off"})
      .type("on|off");
  verb.add("--log-dir", arguments->log_folder,
           "Write the output of rank 2 to rank_2.log in this folder, and not to the screen")
      .type("FOLDER");
  verb.add("--bind", arguments->binding,
           "cores: each rank runs on its own cores (the default). off: all ranks share all cores")
      .one_of({"cores", "off"})
      .type("HOW");
  verb.add_switch("--json", arguments->json,
                  "Print one JSON object per line: starts, output lines, exits");
  verb.add_switch("--dry-run", arguments->dry_run, "Print the command of each rank; start nothing");
}

}  // namespace

int take_command(CommandLine& line, int argc, char** argv, std::vector<std::string>& command) {
  if (argc < 2 || std::string_view(argv[1]) != name) return argc;
  const Verb verb = line.verb(name);
  int at = 2;
  while (at < argc && argv[at][0] == '-' && std::string_view(argv[at]) != "--")
    at += verb.takes_value(argv[at]) ? 2 : 1;
  if (at >= argc) return argc;
  command.assign(argv + (std::string_view(argv[at]) == "--" ? at + 1 : at), argv + argc);
  return at;
}

void add_launch(Verb app, const std::vector<std::string>& command) {
  Verb verb = app.add_verb(
      name, "Start a program as several processes, the ranks of one run, as torchrun does");
  auto arguments = std::make_shared<LaunchArguments>();
  verb.add("PROGRAM", arguments->program, "The program and its arguments, best after '--'")
      .type("PROGRAM ARGUMENTS...");
  add_flags(verb, arguments);
  verb.footer(
      examples({"trestle launch -n 4 -- ./my_program --its-flags",
                "trestle launch -n 4 --max-restarts 3 --log-dir logs -- ./my_program",
                "trestle launch -n 2 -- python3 train.py          # reads the same variables",
                "trestle launch -n 8 --nodes 2 --node-rank 0 --rendezvous node0 -- ./my_program",
                "trestle launch -n 8 --nodes 2 --node-rank 1 --rendezvous node0 -- ./my_program"}) +
      "Sets the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and "
      "more), so that either can start the other's programs; and OMP_NUM_THREADS, unless it is "
      "set.\n"
      "Ctrl-C stops all ranks; a second Ctrl-C kills them. When a rank fails, all other ranks are "
      "stopped.\n"
      "Exit code: that of the first rank that failed, or 128 + the signal that killed it; 0 if all "
      "ranks exited with 0; 2 if the program does not exist or cannot be started.\n");
  verb.action([verb, arguments, &command] { return perform_launch(verb, *arguments, command); });
}

}  // namespace trestle::cli
