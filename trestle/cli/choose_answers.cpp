#include "trestle/cli/choose_answers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <system_error>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/gpt/known_models.h"
#include "trestle/plan/search/search.h"
#include "trestle/recipe/recipe.h"
#include "trestle/simulate/link.h"

namespace trestle::cli {

namespace {

// A whole number from 1 to the most, or 0.
template <class Number>
Number counted_number(const std::string& word, Number most) {
  Number number = 0;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && at == end && number >= 1 && number <= most ? number : 0;
}

bool names_a_recipe(const std::filesystem::path& file) {
  if (file.extension() != ".toml" || !std::filesystem::is_regular_file(file)) return false;
  try {
    recipe::read_recipe(file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string replaced(std::string words, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = words.find(from, at)) != std::string::npos; at += to.size())
    words.replace(at, from.size(), to);
  return words;
}

}  // namespace

DeviceCount parse_device_count(const std::string& words) {
  const std::size_t times = words.find('x');
  const int most = plan::most_devices;
  const int nodes =
      times == std::string::npos ? 1 : counted_number(trim(words.substr(0, times)), most);
  const int per_node =
      counted_number(trim(times == std::string::npos ? words : words.substr(times + 1)), most);
  if (nodes == 0 || per_node == 0 || std::int64_t{nodes} * per_node > most)
    throw UsageError(text("'", words, "' is no number of devices"),
                     {.hint = "Write 8, or 2x4 for two machines with four devices each."});
  return {nodes * per_node, times == std::string::npos ? 0 : per_node};
}

std::int64_t parse_batch_answer(const std::string& words) {
  const std::int64_t batch = counted_number(words, plan::most_examples);
  if (batch == 0)
    throw UsageError(text("'", words, "' is no number of examples"),
                     {.hint = text("Write a whole number from 1 to ", plan::most_examples, ".")});
  return batch;
}

void set_link_between(plan::Machine* machine, const std::string& words) {
  const simulate::Link link = simulate::parse_link(words);
  plan::LinkFigures& between = machine->between;
  const auto given = [&](double value) {
    return plan::Figure{.value = value, .origin = plan::Origin::Assumed, .from = "given: " + words};
  };
  // A machine without a link has no bandwidth.
  const bool printed = between.bandwidth.value > 0 &&
                       link.bandwidth == parse_bandwidth(format_bandwidth(between.bandwidth.value));
  if (!printed) between.bandwidth = given(link.bandwidth);
  const bool has_latency = words.find(',') != std::string::npos;
  if (has_latency && link.latency != between.latency.value) between.latency = given(link.latency);
}

void refuse_links_of_one_machine(int devices) {
  throw UsageError(text("--links has no effect: ", counted(devices, "device is", "devices are"),
                        " in one machine"),
                   {.hint = "Leave it out, or give several machines, such as --devices 2x4."});
}

std::string link_of_recipe(const DeviceCount& count, const std::string& given,
                           const std::string& of_recipe) {
  const bool one_machine = count.nodes() == 1 || (count.nodes() == 0 && of_recipe.empty());
  if (one_machine && !given.empty()) refuse_links_of_one_machine(count.devices);
  if (one_machine) return {};
  const std::string link = given.empty() ? of_recipe : given;
  if (link.empty())
    throw UsageError(text(count.nodes(), " machines need the link between them"),
                     {.hint = "Give --links, such as 25Gbit/s,10us, or set 'link' in [mesh] of the "
                              "recipe."});
  (void)simulate::parse_link(link);
  return link;
}

ModelAnswer parse_model_answer(const std::string& words) {
  if (const std::filesystem::path path = words; path.extension() == ".toml")
    return {.recipe = path};
  const std::size_t colon = words.find(':');
  const std::string form = words.substr(0, colon);
  const std::string sizes = colon == std::string::npos ? "" : words.substr(colon + 1);
  if (form == "gpt" || form == "llama" || form == "unet" || form == "resnet101")
    return {.form = form, .sizes = sizes};
  if (colon != std::string::npos)
    throw UsageError(text("unknown kind of model '", form, "'"),
                     {.hint = "Write gpt:, llama: or unet: and its sizes, resnet101, a recipe's "
                              "file, or the name of a known model."});
  const auto& known = plan::known_models();
  const bool is_model = std::any_of(known.begin(), known.end(),
                                    [&](const auto& model) { return model.name == form; });
  if (!is_model && std::filesystem::exists(recipe::recipe_file(words))) return {.recipe = words};
  return {.form = "model", .sizes = words};
}

std::string without_plan_flags(std::string message, const std::string& form) {
  const std::string flag = "--" + form;
  if (form == "model")
    return replaced(replaced(std::move(message), flag + " NAME", "NAME"), flag, "the model");
  return replaced(replaced(std::move(message), "Write " + flag + " ", text("Write ", form, ":")),
                  flag, form);
}

std::string recipe_found_here() {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(".", none))
    if (names_a_recipe(entry.path())) found.push_back(entry.path().filename().string());
  if (found.size() == 1) return found.front();
  const std::string usual = "recipes/unet_quick.toml";
  return std::filesystem::is_regular_file(usual) ? usual : std::string();
}

std::string first_gpu_name(const std::filesystem::path& driver) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(driver, none)) {
    std::ifstream information(entry.path() / "information");
    for (std::string line; std::getline(information, line);)
      if (line.rfind("Model:", 0) == 0) return trim(line.substr(line.find(':') + 1));
  }
  return {};
}

std::string machine_of_gpu(const std::string& gpu_name, const std::vector<std::string>& profiles) {
  std::string name;
  for (const char letter : gpu_name)
    if (letter != ' ') name += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  for (const std::string& profile : profiles)
    if (name.find(profile.substr(0, profile.find('-'))) != std::string::npos) return profile;
  return {};
}

}  // namespace trestle::cli
