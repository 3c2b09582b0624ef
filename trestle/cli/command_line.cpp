#include "trestle/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::cli {

namespace {

const CLI::App& chosen_app(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? app : chosen_app(*verbs[0]);
}

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// "unknown flag '--epoch'; did you mean '--epochs'? See trestle train --help.", for the first
// unknown word.
std::string unknown_argument(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App& verb = chosen_app(app);
  const std::string word = words.empty() ? "" : split(words[0], '=')[0];
  std::vector<std::string> known;
  if (!word.empty() && word[0] == '-') {
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  } else {
    for (const CLI::App* inner : verbs_of(verb)) known.push_back(inner->get_name());
  }
  const std::string path = verb.get_parent() == nullptr ? "trestle" : "trestle " + verb.get_name();
  const std::string what = word[0] == '-'  ? "unknown flag"
                           : known.empty() ? "unexpected argument"
                                           : "unknown verb";
  if (std::find(known.begin(), known.end(), word) != known.end())
    return text("'", word, "' is a flag, but comes after '--': put it before. See ", path,
                " --help.");
  const std::string meant = did_you_mean(word, known);
  return text(what, " '", word, "'", meant.empty() ? "." : meant, " See ", path, " --help.");
}

// The usual spelling of a flag: the last one without '_' and '.'.
std::string flag_as_typed(const CLI::App& verb, const std::string& first) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_name() != first) continue;
    for (const std::string& name : option->get_lnames())
      if (name.find('.') == std::string::npos && name.find('_') == std::string::npos)
        return "--" + name;
  }
  return first;
}

// Rewrites CLI11's message about a flag without a value or with too many; it begins with the flag's
// first name. Other messages are returned unchanged.
std::string count_mismatch(const CLI::App& app, const std::string& what) {
  const std::string first = what.substr(0, what.find(':'));
  if (!first.starts_with("--")) return what;
  const std::string flag = flag_as_typed(chosen_app(app), first);
  if (what.ends_with("missing")) return text(flag, " needs a value: ", flag, " VALUE");
  if (what.find("At Most 1 required") != std::string::npos)
    return text(flag, " is given more than once");
  return what;
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
  option_->check(CLI::IsMember(values));
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

Flag& Flag::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

Verb Verb::add_verb(const std::string& name, const std::string& help) {
  return {app_->add_subcommand(name, help), chosen_};
}

void Verb::require_verb() { app_->require_subcommand(1); }

Flag Verb::add(const std::string& name, std::string& value, const std::string& help) {
  return {app_, app_->add_option(name, value, help)};
}

Flag Verb::add(const std::string& name, std::optional<std::string>& value,
               const std::string& help) {
  return {app_, app_->add_option(name, value, help)};
}

Flag Verb::add(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return {app_, app_->add_option(name, values, help)};
}

Flag Verb::add(const std::string& name, std::filesystem::path& value, const std::string& help) {
  return {app_, app_->add_option(name, value, help)};
}

Flag Verb::add(const std::string& name, const std::function<void(const std::string&)>& set,
               const std::string& help) {
  return {app_, app_->add_option_function<std::string>(name, set, help)};
}

Flag Verb::add_switch(const std::string& name, bool& value, const std::string& help) {
  return {app_, app_->add_flag(name, value, help)};
}

Flag Verb::add_number(const std::string& name, Range range,
                      const std::function<void(std::int64_t)>& set, const std::string& help) {
  const auto read = [name, range, set](const std::string& word) {
    std::int64_t number = 0;
    const char* const end = word.data() + word.size();
    const auto [behind, error] = std::from_chars(word.data(), end, number);
    if (error != std::errc() || behind != end || number < range.smallest || number > range.largest)
      throw CLI::ValidationError(text(name, " must be a whole number from ", range.smallest, " to ",
                                      range.largest, ", not '", word, "'"));
    set(number);
  };
  return {app_, app_->add_option_function<std::string>(name, read, help)};
}

void Verb::footer(const std::string& text) { app_->footer(text); }

void Verb::action(Action run) {
  app_->callback([chosen = chosen_, run = std::move(run)] { *chosen = run; });
}

bool Verb::given(const std::string& flag) const { return app_->get_option(flag)->count() > 0; }

bool Verb::takes_value(const std::string& flag) const {
  const CLI::Option* option = app_->get_option_no_throw(flag);
  return option != nullptr && option->get_items_expected_min() > 0;
}

CommandLine::CommandLine(const std::string& description, const std::string& name,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(0, 1);
}

CommandLine::~CommandLine() = default;

Verb CommandLine::root() { return {app_.get(), &chosen_}; }

Verb CommandLine::verb(const std::string& name) { return {app_->get_subcommand(name), &chosen_}; }

CommandLine::Parsed CommandLine::parse(int argc, char** argv) {
  using Kind = Parsed::Kind;
  const auto printed = [&](const CLI::Error& what) -> Parsed {
    std::ostringstream out;
    app_->exit(what, out);
    return {Kind::Print, out.str()};
  };
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return printed(CLI::CallForHelp());
  } catch (const CLI::CallForVersion& version) {
    return printed(version);
  } catch (const CLI::ExtrasError&) {
    return {Kind::Error, unknown_argument(*app_, app_->remaining(true))};
  } catch (const CLI::ArgumentMismatch& error) {
    return {Kind::Error, count_mismatch(*app_, error.what())};
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return printed(error);
    return {Kind::Error, error.what()};
  }
  return {};
}

std::string CommandLine::chosen_verb() const {
  const auto verbs = app_->get_subcommands();
  return verbs.empty() ? "" : verbs[0]->get_name();
}

std::string CommandLine::help() const { return app_->help(); }

void CommandLine::refuse_empty_values() const {
  for (const CLI::Option* option : chosen_app(*app_).get_options()) {
    if (option->get_group().starts_with("[")) continue;  // a field of a recipe
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
