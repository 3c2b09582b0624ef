#include "trestle/deepspeed/config/config.h"

#include <array>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/sections.h"

namespace trestle::deepspeed {

namespace {

constexpr int most_ranks = 1'000'000;
constexpr int deepest = 32;  // a deeper value takes stack for each level

// Parses a JSON object and rejects duplicate keys, of which the parser would keep the last.
Json parse(std::string_view bytes, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  std::optional<std::string> twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > deepest)
      throw UsageError(text("values are more than ", deepest, " levels deep"), {.file = file});
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      twice = shown(parsed);
    return true;
  };
  // The parser would stop at a zero byte and ignore the rest.
  if (const auto zero = bytes.find('\0'); zero != std::string_view::npos)
    throw UsageError(text("not JSON: byte ", zero + 1, " is zero"),
                     {.file = file, .hint = "Save it as UTF-8, if it is UTF-16."});
  if (bytes.empty()) throw UsageError("not JSON: the file is empty", {.file = file});
  Json json;
  try {
    json = Json::parse(bytes, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Json::exception& error) {
    const std::string_view words = error.what();  // without the library's "[...] " prefix
    throw UsageError(text("not JSON: ", words.substr(words.find("] ") + 2)), {.file = file});
  }
  if (twice) throw UsageError(text("the key ", *twice, " occurs twice"), {.file = file});
  return json;
}

// OneCycle sets the betas of an optimizer, the second of them to a constant.
void settle_momentum(DeepspeedConfig& config) {
  if (!config.optimizer || !config.schedule || config.schedule->type != "OneCycle" ||
      !config.schedule->cycle_momentum)
    return;
  optim::OptimizerOptions& optimizer = *config.optimizer;
  if (optimizer.name == "adam" || optimizer.name == "adamw") {
    optimizer.beta2 = 0.99;
    config.notes.emplace_back(
        "beta2 is 0.99: DeepSpeed's OneCycle sets it together with the momentum");
    return;
  }
  config.schedule->cycle_momentum = false;
  config.notes.push_back(text(optimizer.name == "sgd" ? "SGD" : "RMSprop",
                              " has no betas: DeepSpeed's OneCycle does not change its momentum"));
}

// Checks rules that involve several keys.
void check_together(Reading reading) {
  const DeepspeedConfig& config = reading.config;
  deepspeed::Problems& problems = reading.problems;
  if (config.offload_optimizer && config.stage == 0)
    problems.add("offload_optimizer needs a stage of at least 1 in zero_optimization, not 0");
  if (config.offload_parameters && config.stage != 3)
    problems.add(text("offload_param needs stage 3 in zero_optimization, not ", config.stage));
  if (config.shard_ranks == 0) return;
  if (config.stage != 3)
    problems.add(text("mics_shard_size needs stage 3 in zero_optimization, not ", config.stage));
  if (config.ranks % config.shard_ranks != 0)
    problems.add(text("mics_shard_size ", config.shard_ranks, " does not divide the ", config.ranks,
                      " ranks"));
}

}  // namespace

std::string DeepspeedConfig::level() const {
  constexpr std::array levels = {"none", "optimizer_state", "gradients", "parameters"};
  return levels.at(static_cast<std::size_t>(stage));
}

DeepspeedConfig parse_deepspeed_config(std::string_view json, const std::string& file, int ranks) {
  if (ranks < 1 || ranks > most_ranks)
    throw UsageError(text("a configuration cannot be for ", ranks, " ranks"), {.file = file});
  DeepspeedConfig config;
  config.file = file;
  config.ranks = ranks;
  Problems problems(file);
  read_file_object(parse(json, file), {config, problems});
  check_together({config, problems});
  problems.throw_if_any();
  settle_momentum(config);
  return config;
}

std::string read_bytes(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path))
    throw UsageError(text(path.string(), ": no such configuration file"),
                     {.hint = "Name DeepSpeed's JSON file, for example ds_config.json."});
  if (std::filesystem::is_directory(path))
    throw UsageError(text(path.string(), ": is a folder, not a configuration file"));
  return read_text_file(path);
}

DeepspeedConfig read_deepspeed_config(const std::filesystem::path& path, int ranks) {
  return parse_deepspeed_config(read_bytes(path), path.string(), ranks);
}

}  // namespace trestle::deepspeed
