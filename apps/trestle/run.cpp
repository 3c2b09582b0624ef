#include "trestle/run.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "apps/trestle/exit_codes.h"
#include "apps/trestle/interrupt.h"
#include "apps/trestle/output.h"
#include "apps/trestle/ranks.h"
#include "apps/trestle/verbs.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/user_parts.h"
#include "trestle/train/setup.h"

namespace trestle {

namespace {

using app::failed;
using app::misused;

int complain(const std::string& message, int code) {
  std::cout.flush();
  // On a terminal it may stand behind the "^C" of a Ctrl-C. Written in one piece: other ranks write
  // there as well.
  std::cerr << text(isatty(STDERR_FILENO) == 1 ? "\r" : "", "trestle: ", trim(message), "\n")
            << std::flush;
  return code;
}

// Of libtorch's "... can't allocate memory: you tried to allocate 36000 bytes. ..." the number;
// nothing for another message.
std::optional<Bytes> bytes_not_there(const std::string& message) {
  constexpr std::string_view words = "can't allocate memory: you tried to allocate ";
  const auto at = message.find(words);
  if (at == std::string::npos) return std::nullopt;
  Bytes bytes = 0;
  std::from_chars(message.data() + at + words.size(), message.data() + message.size(), bytes);
  return bytes;
}

// What is wrong with the words, which are the same on all ranks of a launcher.
int refuse(const std::string& message) {
  return app::another_rank_complains() ? misused : complain(message, misused);
}

int out_of_memory(const std::string& details) {
  return complain(
      "this machine is out of memory" + details +
          "\n  In a training a smaller 'batch' or 'width', more 'micro_batches' or recompute = "
          "\"always\" need less; in data synthesize a smaller --count.",
      failed);
}

// Verbs that compute and write for long, and do not share that among ranks.
void refuse_among_ranks(const CLI::App& app) {
  constexpr std::string_view alone[] = {"balance", "evaluate", "export",
                                        "levels",  "predict",  "sweep"};
  const std::string verb = app.get_subcommands().front()->get_name();
  if (std::find(std::begin(alone), std::end(alone), verb) != std::end(alone))
    app::refuse_on_ranks(verb);
}

int perform(const CLI::App& app, const app::Action& action) {
  try {
    app::refuse_empty_values(app);
    refuse_among_ranks(app);
  } catch (const UsageError& error) {
    return refuse(error.what());
  }
  try {
    return action();
  } catch (const UsageError& error) {
    return complain(error.what(), misused);
  } catch (const StateError& error) {  // as data in the making, given up for a signal
    return complain(error.what(), app::interrupted() ? app::interrupted_exit_code() : failed);
  } catch (const Error& error) {
    return complain(error.what(), failed);
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    std::string where;
    for (const std::string& context : error.context()) where += "\n  " + context;
    if (const auto bytes = bytes_not_there(message))
      return out_of_memory(text(": ", format_bytes(*bytes), " more were asked for", where));
    if (train::is_too_large(error))
      return out_of_memory(": more bytes than can be counted were asked for" + where);
    return complain(message, failed);
  } catch (const std::bad_alloc&) {
    return out_of_memory("");
  } catch (const std::length_error&) {  // more than there can be on any machine
    return out_of_memory("");
  } catch (const std::filesystem::filesystem_error& error) {
    return complain(text(error.path1().string(), ": ", error.code().message()), failed);
  } catch (const std::exception& error) {
    return complain(error.what(), failed);
  }
}

// Reads the words and does what they say.
int obey(CLI::App& app, const app::Action& action, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app::another_rank_prints() ? 0 : app.exit(CLI::CallForHelp(), std::cout);
  } catch (const CLI::CallForVersion& version) {
    return app::another_rank_prints() ? 0 : app.exit(version, std::cout);
  } catch (const CLI::ExtrasError&) {
    return refuse(app::unknown_argument(app, app.remaining(true)));
  } catch (const CLI::ArgumentMismatch& error) {
    return refuse(app::count_mismatch(app, error.what()));
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error, std::cout) : refuse(error.what());
  }
  if (action) return perform(app, action);
  if (!app::another_rank_prints()) std::cout << app.help();
  return misused;
}

}  // namespace

train::UserParts app::user_parts_of(const RunOptions& options) {
  return {.data_sets = options.data_sets, .losses = options.losses, .metrics = options.metrics};
}

int run(int argc, char** argv, const RunOptions& options) {
  app::open_standard_streams();
  app::watch_interrupts();
  std::signal(
      SIGXFSZ,
      SIG_IGN);  // a file that may not grow is an error to report, not the end of the process
  std::signal(SIGPIPE, SIG_IGN);  // a run whose reader has gone saves before it ends
  CLI::App app("Trains neural networks over several devices.", "trestle");
  app.set_version_flag("--version", std::string("trestle ") + TRESTLE_VERSION);
  app.require_subcommand(0, 1);
  app.footer(app::examples({"trestle train recipes/unet_quick.toml",
                            "trestle view --schedule 1f1b --stages 4 --micro-batches 8",
                            "trestle <verb> --help"}) +
             app::exit_codes());
  app::Action action;
  const std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  app::add_train(app, action, options, given);
  app::add_evaluate(app, action, options);
  app::add_predict(app, action, options);
  app::add_view(app, action);
  app::add_balance(app, action, options);
  app::add_sweep(app, action, options);
  app::add_levels(app, action, options);
  app::add_export(app, action);
  std::vector<std::string> command;
  app::add_launch(app, action, command);
  app::add_data(app, action, options);
  app::add_recipe(app, action, options);
  app::add_doctor(app, action, options);
  app::add_completion(app, action);
  const int words = app::take_command(app, argc, argv, command);
  const int code = obey(app, action, words, argv);
  if (code != 0 || app::output_arrives()) return code;
  const std::string why = app::why_output_was_lost();
  return why.empty() ? failed : complain(why, failed);
}

}  // namespace trestle
