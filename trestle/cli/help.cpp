#include "trestle/cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"

namespace trestle::cli {

namespace {

constexpr int widest_help = 100;  // longer lines are hard to read

std::vector<const CLI::App*> inner_verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// "RECIPE", or "RECIPE..." where several are accepted.
std::string value_name(const CLI::Option& option) {
  std::string name = option.get_type_name();
  const bool many = option.get_expected_max() > 1 && !option.nonpositional();
  if (many && !name.ends_with("...")) name += "...";
  return name;
}

class Help {
 public:
  Help(const CLI::App& app, const HelpOptions& options)
      : app_(app), options_(options), columns_(std::min(options.columns, widest_help)) {}

  std::string text_of_all() {
    paragraph(app_.get_description());
    usage();
    arguments();
    flags();
    verbs();
    footer();
    return std::move(out_);
  }

 private:
  void paragraph(const std::string& words) { out_ += wrapped(words, columns_, 0) + "\n"; }

  // "  --name VALUE      the help, wrapped".
  void entry(const std::string& name, const std::string& help) {
    constexpr int indent = 24;
    std::string line = "  " + name;
    if (columns_of(line) > indent - 2) {
      out_ += line + "\n";
      line.clear();
    }
    line.resize(line.size() + static_cast<std::size_t>(indent - columns_of(line)), ' ');
    bool first = true;
    for (const std::string& row : split(help, '\n')) {  // a list of names has a line for each
      if (!first) line = std::string(indent, ' ');
      const bool indented = row.starts_with("  ");
      out_ += wrapped(line + row, columns_, indent + (indented ? 4 : 0)) + "\n";
      first = false;
    }
  }

  void usage() {
    std::string line = "Usage: " + path_of(app_);
    if (!inner_verbs(app_).empty()) line += " VERB";
    for (const CLI::Option* option : positionals())
      line += option->get_required() ? " " + value_name(*option) : " [" + value_name(*option) + "]";
    paragraph(line + " [FLAGS]");
  }

  std::vector<const CLI::Option*> positionals() const {
    return app_.get_options([](const CLI::Option* option) { return option->get_positional(); });
  }

  void arguments() {
    const auto all = positionals();
    if (all.empty()) return;
    out_ += "\nArguments:\n";
    for (const CLI::Option* option : all) entry(value_name(*option), option->get_description());
  }

  bool is_shown(const CLI::Option& flag) const {
    if (&flag == app_.get_help_all_ptr()) return has_rare() || app_.get_parent() == nullptr;
    return options_.level == HelpLevel::All || !options_.rare.contains(&flag);
  }

  bool has_rare() const {
    const auto all = app_.get_options();
    return std::any_of(all.begin(), all.end(),
                       [&](const CLI::Option* option) { return options_.rare.contains(option); });
  }

  void flags() {
    std::vector<std::string> groups;
    for (const CLI::Option* option : app_.get_options())
      if (option->nonpositional() && is_shown(*option) &&
          std::find(groups.begin(), groups.end(), option->get_group()) == groups.end())
        groups.push_back(option->get_group());
    bool of_recipe = false;
    std::int64_t left_out = 0;
    for (const CLI::Option* option : app_.get_options())
      left_out +=
          option->nonpositional() && !is_shown(*option) && option != app_.get_help_all_ptr();
    for (const std::string& group : groups) {
      out_ += "\n" + (group == "Options" ? std::string("Flags") : group) + ":\n";
      of_recipe = of_recipe || group.starts_with("[");
      for (const CLI::Option* option : app_.get_options())
        if (option->nonpositional() && option->get_group() == group && is_shown(*option))
          flag(*option);
    }
    if (of_recipe || left_out > 0) out_ += "\n";
    if (of_recipe)
      paragraph("A flag of the recipe may also be written with its section, as --train.epochs.");
    if (left_out > 0)
      paragraph(
          text(counted(left_out, "more flag"), " for rare needs: ", path_of(app_), " --help-all"));
  }

  void flag(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : usual_names(option)) names.push_back(name);
    std::string name = join(names, ", ");
    const bool takes_value = option.get_items_expected_min() > 0;
    if (takes_value && !option.get_type_name().empty()) name += " " + option.get_type_name();
    entry(name, option.get_description() + (option.get_required() ? " (required)" : ""));
  }

  void verbs() {
    const auto all = inner_verbs(app_);
    if (all.empty()) return;
    out_ += "\nVerbs:\n";
    for (const CLI::App* verb : all) entry(verb->get_name(), verb->get_description());
  }

  // An example is broken before a flag, or else before another word, with a backslash, so that it
  // can be copied.
  std::string example(const std::string& line) const {
    std::string out, rest = line;
    while (columns_of(rest) > columns_) {
      const std::size_t at = place_to_break(rest, static_cast<std::size_t>(columns_ - 2));
      if (at == std::string::npos) break;
      out += rest.substr(0, at) + " \\\n";
      rest = "      " + rest.substr(at + 1);
    }
    return out + rest;
  }

  // The blank before the last flag that leaves at most `most` bytes before it, before the last such
  // word, or before the second word. Quoted words are not broken.
  static std::size_t place_to_break(const std::string& line, std::size_t most) {
    std::size_t flag = std::string::npos, word = std::string::npos;
    char quote = '\0';
    for (std::size_t i = line.find_first_not_of(' '); i < line.size(); ++i) {
      const char letter = line[i];
      if (quote != '\0') {
        if (letter == quote) quote = '\0';
      } else if (letter == '"' || letter == '\'') {
        quote = letter;
      } else if (letter == ' ') {
        if (i > most && word != std::string::npos) break;
        word = i;
        if (i <= most && line.compare(i, 3, " --") == 0) flag = i;
      }
    }
    return flag != std::string::npos ? flag : word;
  }

  // The footer's source has breaks within its sentences. They are wrapped for these columns.
  void footer() {
    const std::string words = app_.get_footer();
    if (words.empty()) return;
    out_ += "\n";
    std::string open;  // the begin of a sentence
    for (const std::string& line : split(trim(words), '\n')) {
      const bool is_example = line.starts_with("  ");
      if (!open.empty() && (is_example || line.empty())) paragraph(std::exchange(open, ""));
      if (is_example) {
        out_ += example(line) + "\n";
        continue;
      }
      open += (open.empty() ? "" : " ") + line;
      if (line.empty() || line.ends_with('.') || line.ends_with(':'))
        paragraph(std::exchange(open, ""));
    }
    if (!open.empty()) paragraph(open);
  }

  const CLI::App& app_;
  const HelpOptions& options_;
  int columns_;
  std::string out_;
};

}  // namespace

std::string path_of(const CLI::App& app) {
  if (app.get_parent() == nullptr) return app.get_name();
  return path_of(*app.get_parent()) + " " + app.get_name();
}

std::string or_list(const std::vector<std::string>& words) {
  if (words.size() < 2) return join(words, "");
  const std::vector<std::string> first(words.begin(), words.end() - 1);
  return join(first, ", ") + " or " + words.back();
}

std::vector<std::string> usual_names(const CLI::Option& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.get_lnames())
    if (name.find('.') == std::string::npos && name.find('_') == std::string::npos)
      names.push_back("--" + name);
  if (names.empty() && !flag.get_lnames().empty()) names.push_back("--" + flag.get_lnames().back());
  return names;
}

std::string help_text(const CLI::App& app, const HelpOptions& options) {
  std::string all = Help(app, options).text_of_all();
  if (options.level == HelpLevel::All)
    for (const CLI::App* verb : inner_verbs(app)) {
      const std::string rule(static_cast<std::size_t>(std::min(options.columns, widest_help)), '-');
      all += "\n" + rule + "\n\n" + help_text(*verb, options);
    }
  return all;
}

}  // namespace trestle::cli
