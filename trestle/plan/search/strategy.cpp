#include "trestle/plan/search/strategy.h"

#include <array>
#include <charconv>
#include <map>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"

namespace trestle::plan {
namespace {

struct NamedRecompute {
  std::string_view name;
  BlockRecompute recompute;
};
constexpr std::array recompute_words = {NamedRecompute{"none", BlockRecompute::None},
                                        NamedRecompute{"selective", BlockRecompute::Selective},
                                        NamedRecompute{"all", BlockRecompute::All}};

const std::vector<std::string>& kept_keys() {
  static const std::vector<std::string> keys = {"tensor",   "pipeline",    "data",
                                                "level",    "micro_batch", "recompute",
                                                "schedule", "chunks",      "sequence_parallel"};
  return keys;
}

int number_of_key(const std::string& key, const std::string& value, int least) {
  int number = 0;
  const auto end = value.data() + value.size();
  const auto [at, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || at != end || number < least)
    throw UsageError(
        text("--keep ", key, "=", value, ": ", key, " is a whole number from ", least));
  return number;
}

void set_kept(Kept* kept, const std::string& key, const std::string& value) {
  if (key == "tensor") kept->tensor = number_of_key(key, value, 1);
  if (key == "pipeline") kept->pipeline = number_of_key(key, value, 1);
  if (key == "data") kept->data = number_of_key(key, value, 1);
  if (key == "micro_batch") kept->micro_batch = number_of_key(key, value, 1);
  if (key == "chunks") kept->chunks = number_of_key(key, value, 1);
  if (key == "level") {
    kept->level = number_of_key(key, value, 0);
    if (*kept->level > 3)
      throw UsageError(text("--keep level=", value, ": the levels of ZeRO are 0, 1, 2 and 3"));
  }
  if (key == "recompute") kept->recompute = parse_block_recompute(value);
  if (key == "schedule") {
    choose("schedule", value, schedule::known_schedules());
    kept->schedule = value;
  }
  if (key == "sequence_parallel") {
    if (value != "yes" && value != "no")
      throw UsageError(text("--keep sequence_parallel=", value, ": write yes or no"));
    kept->sequence_parallel = value == "yes";
  }
}

}  // namespace

std::string_view to_string(BlockRecompute recompute) {
  return recompute_words[static_cast<std::size_t>(recompute)].name;
}

BlockRecompute parse_block_recompute(std::string_view word) {
  return choose("recomputation", word, recompute_words).recompute;
}

std::int64_t micro_batches_of(const Strategy& strategy, std::int64_t batch) {
  return batch / (std::int64_t{strategy.data} * strategy.micro_batch);
}

std::string to_string(const Strategy& strategy) {
  std::vector<std::string> words = {text("tensor ", strategy.tensor),
                                    text("pipeline ", strategy.pipeline),
                                    text("data ", strategy.data)};
  if (strategy.level > 0) words.push_back(text("ZeRO-", strategy.level));
  words.push_back(text("micro-batch ", strategy.micro_batch));
  words.push_back(text("recompute ", to_string(strategy.recompute)));
  if (strategy.pipeline > 1) words.push_back(strategy.schedule);
  if (strategy.chunks > 1) words.push_back(text("interleaved in ", strategy.chunks));
  if (strategy.sequence_parallel) words.emplace_back("token shards");
  return join(words, " · ");
}

Kept parse_kept(const std::vector<std::string>& words) {
  Kept kept;
  std::map<std::string, std::string> given;
  for (const std::string& list : words)
    for (const std::string& word : split(list, ',')) {
      const std::size_t equals = word.find('=');
      const std::string key = trim(word.substr(0, equals));
      if (equals == std::string::npos)
        throw UsageError(text("--keep '", word, "' has no value"),
                         {.hint = "Write key=value, for example --keep tensor=8,pipeline=2"});
      const std::string value = trim(word.substr(equals + 1));
      bool known = false;
      for (const std::string& name : kept_keys()) known = known || name == key;
      if (!known) throw_unknown("key of --keep", key, kept_keys());
      const auto [before, added] = given.emplace(key, value);
      if (!added && before->second != value)
        throw UsageError(text("--keep gives ", key, " twice: ", before->second, " and ", value),
                         {.hint = "Give one of them."});
      set_kept(&kept, key, value);
    }
  return kept;
}

bool describes_run(const Kept& kept) {
  return kept.tensor && (kept.pipeline || kept.data) && kept.micro_batch && kept.recompute;
}

std::string to_string(const Kept& kept) {
  std::vector<std::string> words;
  const auto add = [&](const char* key, const auto& value) {
    if (value) words.push_back(text(key, "=", *value));
  };
  add("tensor", kept.tensor);
  add("pipeline", kept.pipeline);
  add("data", kept.data);
  add("level", kept.level);
  add("micro_batch", kept.micro_batch);
  if (kept.recompute) words.push_back(text("recompute=", to_string(*kept.recompute)));
  add("schedule", kept.schedule);
  add("chunks", kept.chunks);
  if (kept.sequence_parallel)
    words.push_back(text("sequence_parallel=", *kept.sequence_parallel ? "yes" : "no"));
  return join(words, ",");
}

}  // namespace trestle::plan
