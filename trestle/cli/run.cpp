#include "trestle/run.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/json.h"
#include "trestle/cli/output.h"
#include "trestle/cli/ranks.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/setup.h"

namespace trestle {

namespace {

using cli::failed;
using cli::usage_error;

// Prints errors: for people to the standard error, and with --json also as the last line of the
// standard output.
class Complaints {
 public:
  explicit Complaints(bool json) : json_(json) {}

  // The hint is shown on a line of its own, unless `whole` already is message and hint in one.
  int complain(const std::string& message, int code, const std::string& hint = "",
               const std::string& whole = "") const {
    if (json_) std::cout << cli::error_json(trim(message), hint, code) << "\n";
    std::cout.flush();
    const std::string shown = !whole.empty() ? whole
                              : hint.empty() ? message
                                             : message + "\n  " + hint;
    // "\r" overwrites the "^C" that a terminal shows. The message is one write, since other ranks
    // write to the same stream.
    std::cerr << text(isatty(STDERR_FILENO) == 1 ? "\r" : "", "trestle: ", trim(shown), "\n")
              << std::flush;
    return code;
  }

  int complain(const Error& error, int code) const {
    std::string message = error.what();
    const std::string& hint = error.where().hint;
    const auto at = hint.empty() ? std::string::npos : message.find("\n  " + hint);
    if (at != std::string::npos) message.erase(at, hint.size() + 3);
    return complain(message, code, hint, error.what());
  }

 private:
  bool json_;
};

// The number of bytes in libtorch's "... can't allocate memory: you tried to allocate 36000 bytes.
// ..."; nothing for other messages.
std::optional<Bytes> failed_allocation(const std::string& message) {
  constexpr std::string_view words = "can't allocate memory: you tried to allocate ";
  const auto at = message.find(words);
  if (at == std::string::npos) return std::nullopt;
  Bytes bytes = 0;
  std::from_chars(message.data() + at + words.size(), message.data() + message.size(), bytes);
  return bytes;
}

std::string advice_on_memory(const std::string& verb) {
  if (verb == "generate")
    return "Use --precision bf16 or int8, a smaller --batch, shorter prompts, fewer --tokens, or a "
           "smaller model.";
  if (verb == "evaluate")
    return "Use a smaller --batch, or for a language model --precision bf16 or --mesh tensor=2.";
  if (verb == "data") return "For data synthesize, use a smaller --count.";
  if (verb == "train" || verb == "sweep" || verb == "levels" || verb == "balance")
    return "Use a smaller 'batch' or 'width', more 'micro_batches', or recompute = \"always\".";
  return "";
}

int out_of_memory(const Complaints& to, const std::string& verb, const std::string& details) {
  return to.complain("this machine is out of memory" + details, failed, advice_on_memory(verb));
}

// Verbs that compute and write for long, but run on one process only.
void refuse_among_ranks(const std::string& verb) {
  constexpr std::string_view alone[] = {"balance", "export", "levels", "predict", "sweep"};
  if (std::find(std::begin(alone), std::end(alone), verb) != std::end(alone))
    cli::refuse_on_ranks(verb);
}

// Whether the verb's ranks decide themselves which of them prints an error (on_ranks()).
bool decides_who_prints(const std::string& verb) {
  return verb == "train" || verb == "generate" || verb == "evaluate" || verb == "launch";
}

int complain_of(const Complaints& to, const std::string& verb, const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  std::string where;
  for (const std::string& context : error.context()) where += "\n  " + context;
  if (const auto bytes = failed_allocation(message))
    return out_of_memory(to, verb, text(": could not allocate ", format_bytes(*bytes), where));
  if (train::is_too_large(error))
    return out_of_memory(to, verb,
                         ": could not allocate more bytes than an integer can count" + where);
  return to.complain(message, failed);
}

int run_verb(const cli::CommandLine& line, const Complaints& to) {
  try {
    const bool valid = cli::is_valid_on_all_ranks([&] {
      line.refuse_empty_values();
      refuse_among_ranks(line.chosen_verb());
    });
    if (!valid) return usage_error;
    return line.chosen_action()();
  } catch (const UsageError& error) {
    // A launcher gave the same words to all ranks.
    const bool another = !decides_who_prints(line.chosen_verb()) && cli::another_rank_complains();
    return another ? usage_error : to.complain(error, usage_error);
  } catch (const StateError& error) {  // for example synthesizing data, stopped by a signal
    return to.complain(error, cli::interrupted() ? cli::interrupted_exit_code() : failed);
  } catch (const Error& error) {
    return to.complain(error, failed);
  } catch (const c10::Error& error) {
    return complain_of(to, line.chosen_verb(), error);
  } catch (const std::bad_alloc&) {
    return out_of_memory(to, line.chosen_verb(), "");
  } catch (const std::length_error&) {  // more elements than a container can hold
    return out_of_memory(to, line.chosen_verb(), "");
  } catch (const std::filesystem::filesystem_error& error) {
    return to.complain(text(error.path1().string(), ": ", error.code().message()), failed);
  } catch (const std::exception& error) {
    return to.complain(error.what(), failed);
  }
}

int parse_and_run(cli::CommandLine& line, int argc, char** argv) {
  using Kind = cli::CommandLine::Parsed::Kind;
  const std::span words(argv, static_cast<std::size_t>(argc));
  const Complaints to(std::ranges::any_of(
      words, [](const char* word) { return std::string_view(word) == "--json"; }));
  const auto parsed = line.parse(argc, argv);
  if (parsed.kind == Kind::Error) {
    cli::tell_other_machines(UsageError(parsed.text, {.hint = parsed.hint}));
    if (cli::another_rank_complains()) return usage_error;
    const char* const end = parsed.text.ends_with('?') ? " " : ". ";
    return to.complain(parsed.text, usage_error, parsed.hint,
                       parsed.hint.empty() ? "" : parsed.text + end + parsed.hint);
  }
  if (parsed.kind == Kind::Run && line.chosen_action()) return run_verb(line, to);
  if (!cli::another_rank_prints())
    std::cout << (parsed.kind == Kind::Print ? parsed.text : line.help());
  return parsed.kind == Kind::Print ? 0 : usage_error;
}

void add_verbs(cli::CommandLine& line, const RunOptions& options,
               const std::vector<std::string>& words, const std::vector<std::string>& command) {
  const cli::Verb root = line.root();
  cli::add_train(root, options, words);
  cli::add_evaluate(root, options, words);
  cli::add_predict(root, options);
  cli::add_generate(root, words);
  cli::add_text(root);
  cli::add_view(root, options);
  cli::add_balance(root, options);
  cli::add_plan(root, options);
  cli::add_choose(root, options);
  cli::add_schedules(root, options);
  cli::add_calibrate(root, words);
  cli::add_sweep(root, options);
  cli::add_levels(root, options);
  cli::add_export(root);
  cli::add_launch(root, command);
  cli::add_data(root, options);
  cli::add_recipe(root, options);
  cli::add_doctor(root, options);
  cli::add_completion(root, line);
}

}  // namespace

train::UserParts cli::user_parts_of(const RunOptions& options) {
  return {.data_sets = options.data_sets, .losses = options.losses, .metrics = options.metrics};
}

int run(int argc, char** argv, const RunOptions& options) {
  cli::open_standard_streams();
  cli::watch_interrupts();
  std::signal(SIGXFSZ, SIG_IGN);  // writing beyond the file size limit fails, and is reported
  std::signal(SIGPIPE, SIG_IGN);  // a run saves before it ends when its reader has closed the pipe
  cli::CommandLine line("Trains neural networks over several devices.", "trestle",
                        std::string("trestle ") + TRESTLE_VERSION);
  line.root().footer(cli::examples({"trestle train recipes/unet_quick.toml",
                                    "trestle view --schedule 1f1b --stages 4 --micro-batches 8",
                                    "trestle <verb> --help"}) +
                     cli::exit_codes());
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> command;
  add_verbs(line, options, words, command);
  const int left = cli::take_command(line, argc, argv, command);
  const int code = parse_and_run(line, left, argv);
  if (code != 0 || cli::output_arrives()) return code;
  const std::string why = cli::why_output_was_lost();
  return why.empty() ? failed : Complaints(false).complain(why, failed);
}

}  // namespace trestle
