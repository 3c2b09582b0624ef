#include "trestle/cli/parse_errors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "trestle/base/choose.h"
#include "trestle/base/text.h"
#include "trestle/cli/help.h"

namespace trestle::cli {

namespace {

std::vector<std::string> names_of_verbs(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  return names;
}

// "data check": a message begins with the program's name already.
std::string verb_of(const CLI::App& app) {
  const std::string path = path_of(app);
  return path.substr(std::min(path.find(' ') + 1, path.size()));
}

std::string see_help(const CLI::App& verb) { return text("See ", path_of(verb), " --help."); }

// CLI11's messages begin with a flag's first name; a user types the usual one.
std::string flag_as_typed(const CLI::App& verb, const std::string& first) {
  for (const CLI::Option* option : verb.get_options())
    if (option->get_name() == first && !option->get_positional()) return usual_names(*option)[0];
  return first;
}

// A flag without a value, or with too many.
std::string count_mismatch(const CLI::App& verb, const std::string& what) {
  const std::string first = what.substr(0, what.find(':'));
  if (!first.starts_with("-")) return what;
  const std::string flag = flag_as_typed(verb, first);
  if (what.ends_with("missing")) return text(flag, " needs a value: ", flag, " VALUE");
  if (what.find("At Most 1 required") != std::string::npos)
    return text(flag, " is given more than once");
  return what;
}

// "data needs a verb: synthesize or check", "predict needs --images DIR".
std::string missing_words(const CLI::App& verb) {
  const std::vector<std::string> verbs = names_of_verbs(verb);
  if (verb.get_require_subcommand_min() > 0 && verb.get_subcommands().empty())
    return text(verb_of(verb), " needs a verb: ", or_list(verbs));
  std::vector<std::string> missing;
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    std::string value = option->get_type_name();
    if (value.ends_with("...")) value.resize(value.size() - 3);  // one is enough
    missing.push_back(option->get_positional() ? "a " + value
                                               : usual_names(*option)[0] + " " + value);
  }
  return text(verb_of(verb), " needs ", join(missing, " and "));
}

// "recipe excludes --layers" -> "give a RECIPE or --layers, not both".
std::string both_given(const CLI::App& verb, const std::string& what) {
  const std::string word = " excludes ";
  const auto at = what.find(word);
  if (at == std::string::npos) return what;
  const auto name = [&](const std::string& first) {
    for (const CLI::Option* option : verb.get_options())
      if (option->get_name() == first && option->get_positional())
        return "a " + option->get_type_name();
    return flag_as_typed(verb, first);
  };
  return text("give ", name(what.substr(0, at)), " or ", name(what.substr(at + word.size())),
              ", not both");
}

struct ForeignFlag {
  std::string_view name;   // without dashes, as other programs spell it
  std::string_view needs;  // the flag of this verb without which there is nothing to name
  std::string_view instead;
};

constexpr std::array<ForeignFlag, 14> foreign_flags = {
    {{"fsdp", "--mesh", "--mesh shard=N --shard-level parameters"},
     {"fully-shard", "--mesh", "--mesh shard=N --shard-level parameters"},
     {"zero", "--mesh", "--mesh shard=N --shard-level parameters"},
     {"zero3", "--mesh", "--mesh shard=N --shard-level parameters"},
     {"zero2", "--mesh", "--mesh shard=N --shard-level gradients"},
     {"zero1", "--mesh", "--mesh shard=N --shard-level optimizer_state"},
     {"hsdp", "--mesh", "--mesh replicate=N,shard=N --shard-level parameters"},
     {"ddp", "--mesh", "--mesh replicate=N"},
     {"data-parallel", "--mesh", "--mesh replicate=N"},
     {"nproc-per-node", "--ranks", "--ranks N"},
     {"world-size", "--ranks", "--ranks N"},
     {"gpus", "--devices", "--devices cuda:0,cuda:1"},
     {"chunks", "--micro-batches", "--micro-batches N"},
     {"amp", "--precision", "--precision bf16"}}};

// The flags that do what a flag of PyTorch's, DeepSpeed's or torchgpipe's programs does; "" for
// other words.
std::string flags_instead_of(const CLI::App& verb, std::string_view word) {
  std::string name(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  std::replace(name.begin(), name.end(), '_', '-');
  for (const ForeignFlag& foreign : foreign_flags)
    if (name == foreign.name && verb.get_option_no_throw(std::string(foreign.needs)) != nullptr)
      return std::string(foreign.instead);
  return "";
}

}  // namespace

const CLI::App& chosen_app(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? app : chosen_app(*verbs[0]);
}

bool is_unknown_verb(const CLI::App& app, const std::vector<std::string>& words) {
  return !words.empty() && !words[0].starts_with("-") && !names_of_verbs(chosen_app(app)).empty();
}

ParseMessage unknown_argument(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App& verb = chosen_app(app);
  const std::string word = words.empty() ? "" : split(words[0], '=')[0];
  const bool is_flag = word.starts_with("-");
  std::vector<std::string> known;
  if (is_flag) {
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  } else {
    known = names_of_verbs(verb);
  }
  if (std::find(known.begin(), known.end(), word) != known.end())
    return {text("'", word, "' is a flag, but comes after '--': put it before"), see_help(verb)};
  const std::string what = is_flag         ? "unknown flag"
                           : known.empty() ? "unexpected argument"
                                           : "unknown verb";
  const std::string instead = is_flag ? flags_instead_of(verb, word) : "";
  if (!instead.empty()) return {text(what, " '", word, "'; write ", instead), see_help(verb)};
  return {text(what, " '", word, "'", did_you_mean(word, known)), see_help(verb)};
}

ParseMessage parse_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = chosen_app(app);
  const std::string what = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    return {missing_words(verb), see_help(verb)};
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr)
    return {both_given(verb, what), see_help(verb)};
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return {count_mismatch(verb, what), see_help(verb)};
  return {what, see_help(verb)};
}

}  // namespace trestle::cli
