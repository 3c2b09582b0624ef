#include "trestle/cli/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/help.h"
#include "trestle/cli/parse_errors.h"

namespace trestle::cli {

namespace {

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> words_of(const CLI::App& verb) {
  std::vector<std::string> words;
  for (const CLI::App* inner : verbs_of(verb)) words.push_back(inner->get_name());
  // A field of a recipe has several names; one is enough: the last one, which --help prints last.
  for (const CLI::Option* option : verb.get_options())
    if (!option->get_lnames().empty()) words.push_back("--" + option->get_lnames().back());
  return words;
}

void add_words(const CLI::App& verb, const std::string& path,
               std::vector<std::pair<std::string, std::vector<std::string>>>& all) {
  all.emplace_back(path, words_of(verb));
  for (const CLI::App* inner : verbs_of(verb))
    add_words(*inner, path.empty() ? inner->get_name() : path + " " + inner->get_name(), all);
}

}  // namespace

Flag& Flag::type(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Flag& Flag::required() {
  option_->required();
  return *this;
}

Flag& Flag::one_of(const std::vector<std::string>& values) {
  const auto known = [values, name = option_->get_name()](const std::string& word) {
    if (std::find(values.begin(), values.end(), word) == values.end())
      throw UsageError(text(name, " must be ", or_list(values), ", not '", word, "'",
                            did_you_mean(word, values)));
    return std::string();
  };
  option_->check(known);
  return *this;
}

Flag& Flag::excludes(const std::string& flag) {
  option_->excludes(app_->get_option(flag));
  return *this;
}

Flag& Flag::group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

Flag& Flag::rare() {
  state_->rare.insert(option_);
  return *this;
}

Flag& Flag::may_be_empty() {
  state_->emptiable.insert(option_);
  return *this;
}

Flag& Flag::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

Verb Verb::add_verb(const std::string& name, const std::string& help) {
  return {app_->add_subcommand(name, help), state_};
}

void Verb::require_verb() { app_->require_subcommand(1); }

Flag Verb::add(const std::string& name, std::string& value, const std::string& help) {
  return {app_, app_->add_option(name, value, help), state_};
}

Flag Verb::add(const std::string& name, std::optional<std::string>& value,
               const std::string& help) {
  return {app_, app_->add_option(name, value, help), state_};
}

Flag Verb::add(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return {app_, app_->add_option(name, values, help), state_};
}

Flag Verb::add(const std::string& name, std::filesystem::path& value, const std::string& help) {
  return {app_, app_->add_option(name, value, help), state_};
}

Flag Verb::add(const std::string& name, const std::function<void(const std::string&)>& set,
               const std::string& help) {
  return {app_, app_->add_option_function<std::string>(name, set, help), state_};
}

Flag Verb::add_switch(const std::string& name, bool& value, const std::string& help) {
  return {app_, app_->add_flag(name, value, help), state_};
}

Flag Verb::add_switch(const std::string& name, const std::function<void()>& set,
                      const std::string& help) {
  return {app_, app_->add_flag_callback(name, set, help), state_};
}

Flag Verb::add_number(const std::string& name, Range range,
                      const std::function<void(std::int64_t)>& set, const std::string& help) {
  const auto read = [name, range, set](const std::string& word) {
    std::int64_t number = 0;
    const char* const end = word.data() + word.size();
    const auto [behind, error] = std::from_chars(word.data(), end, number);
    if (error != std::errc() || behind != end || number < range.smallest || number > range.largest)
      throw UsageError(text(name, " must be a whole number from ", range.smallest, " to ",
                            range.largest, ", not '", word, "'"));
    set(number);
  };
  return {app_, app_->add_option_function<std::string>(name, read, help), state_};
}

void Verb::footer(const std::string& text) { app_->footer(text); }

void Verb::action(Action run) {
  app_->callback([state = state_, run = std::move(run)] { state->chosen = run; });
}

bool Verb::given(const std::string& flag) const { return app_->get_option(flag)->count() > 0; }

bool Verb::takes_value(const std::string& flag) const {
  const CLI::Option* option = app_->get_option_no_throw(flag);
  return option != nullptr && option->get_items_expected_min() > 0;
}

CommandLine::CommandLine(const std::string& description, const std::string& name,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_help_flag("-h,--help", "Print this help");
  app_->set_help_all_flag("--help-all", "Print the help with every flag");
  app_->set_version_flag("--version", version, "Print the version");
  app_->require_subcommand(0, 1);
}

CommandLine::~CommandLine() = default;

Verb CommandLine::root() { return {app_.get(), &state_}; }

Verb CommandLine::verb(const std::string& name) { return {app_->get_subcommand(name), &state_}; }

CommandLine::Parsed CommandLine::parse(int argc, char** argv) {
  using Kind = Parsed::Kind;
  const auto refused = [](const ParseMessage& message) -> Parsed {
    return {Kind::Error, message.text, message.hint};
  };
  const auto help = [&](HelpLevel level) -> Parsed {
    const std::vector<std::string> unknown = app_->remaining(true);
    if (is_unknown_verb(*app_, unknown)) return refused(unknown_argument(*app_, unknown));
    return {Kind::Print, help_of(level)};
  };
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForAllHelp&) {
    return help(HelpLevel::All);
  } catch (const CLI::CallForHelp&) {
    return help(HelpLevel::Usual);
  } catch (const CLI::CallForVersion& version) {
    return {Kind::Print, text(version.what(), "\n")};
  } catch (const CLI::ExtrasError&) {
    return refused(unknown_argument(*app_, app_->remaining(true)));
  } catch (const CLI::ParseError& error) {
    return refused(parse_message(*app_, error));
  } catch (const UsageError& error) {  // of a flag's value
    return {Kind::Error, error.what()};
  }
  return {};
}

std::string CommandLine::chosen_verb() const {
  const auto verbs = app_->get_subcommands();
  return verbs.empty() ? "" : verbs[0]->get_name();
}

std::string CommandLine::help() const { return help_of(HelpLevel::Usual); }

std::string CommandLine::help_of(HelpLevel level) const {
  return help_text(
      chosen_app(*app_),
      {.columns = columns_for_text(STDOUT_FILENO), .level = level, .rare = state_.rare});
}

void CommandLine::refuse_empty_values() const {
  for (const CLI::Option* option : chosen_app(*app_).get_options()) {
    if (option->get_group().starts_with("[")) continue;  // a field of a recipe
    if (state_.emptiable.contains(option)) continue;
    for (const std::string& value : option->results())
      if (value.empty())
        throw UsageError(text(option->get_name(), " is empty"),
                         {.hint = "Leave it out, or give it a value."});
  }
}

std::vector<std::pair<std::string, std::vector<std::string>>> CommandLine::words() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  add_words(*app_, "", all);
  return all;
}

}  // namespace trestle::cli
