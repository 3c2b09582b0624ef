#include "trestle/plan/search/strategy.h"

#include <array>
#include <charconv>
#include <map>

#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"

namespace trestle::plan {
namespace {

void check_schedule(const std::string& name) {
  choose("schedule", name, schedule::known_schedules());
}

struct NamedRecompute {
  std::string_view name;
  BlockRecompute recompute;
};
constexpr std::array recompute_words = {NamedRecompute{"none", BlockRecompute::None},
                                        NamedRecompute{"selective", BlockRecompute::Selective},
                                        NamedRecompute{"all", BlockRecompute::All}};

struct NamedPrecision {
  std::string_view name;
  Precision precision;
};
constexpr std::array precision_words = {
    NamedPrecision{"own", Precision::Own}, NamedPrecision{"fp32", Precision::Fp32},
    NamedPrecision{"bf16", Precision::Bf16}, NamedPrecision{"fp16", Precision::Fp16}};

// The keys of --keep whose values are numbers.
struct NumberKey {
  std::string name;
  std::optional<int> Kept::*member;
  int least;
};
const std::vector<NumberKey>& number_keys() {
  static const std::vector<NumberKey> keys = {{"tensor", &Kept::tensor, 1},
                                              {"pipeline", &Kept::pipeline, 1},
                                              {"data", &Kept::data, 1},
                                              {"level", &Kept::level, 0},
                                              {"replicate", &Kept::replicate, 1},
                                              {"micro_batch", &Kept::micro_batch, 1},
                                              {"recompute_layers", &Kept::recompute_layers, 0},
                                              {"recompute_stages", &Kept::recompute_stages, 0},
                                              {"chunks", &Kept::chunks, 1}};
  return keys;
}

struct SwitchKey {
  std::string name;
  std::optional<bool> Kept::*member;
};
const std::vector<SwitchKey>& switch_keys() {
  static const std::vector<SwitchKey> keys = {{"sequence_parallel", &Kept::sequence_parallel},
                                              {"offload", &Kept::offload}};
  return keys;
}

std::vector<std::string> kept_keys() {
  std::vector<std::string> keys = {"recompute", "schedule", "precision"};
  for (const NumberKey& key : number_keys()) keys.push_back(key.name);
  for (const SwitchKey& key : switch_keys()) keys.push_back(key.name);
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

void check_level(int level) {
  if (level > 3)
    throw UsageError(text("--keep level=", level, ": the levels of ZeRO are 0, 1, 2 and 3"));
}

void set_kept(Kept* kept, const std::string& key, const std::string& value) {
  for (const NumberKey& number : number_keys())
    if (key == number.name) kept->*number.member = number_of_key(key, value, number.least);
  if (kept->level) check_level(*kept->level);
  for (const SwitchKey& flag : switch_keys()) {
    if (key != flag.name) continue;
    if (value != "yes" && value != "no")
      throw UsageError(text("--keep ", key, "=", value, ": write yes or no"));
    kept->*flag.member = value == "yes";
  }
  if (key == "recompute") kept->recompute = parse_block_recompute(value);
  if (key == "schedule") {
    check_schedule(value);
    kept->schedule = value;
  }
  if (key == "precision") {
    kept->any_precision = value == "any";
    if (!kept->any_precision) kept->precision = parse_precision(value);
  }
}

}  // namespace

std::string_view to_string(BlockRecompute recompute) {
  return recompute_words[static_cast<std::size_t>(recompute)].name;
}

BlockRecompute parse_block_recompute(std::string_view word) {
  return choose("recomputation", word, recompute_words).recompute;
}

std::string_view to_string(Precision precision) {
  return precision_words[static_cast<std::size_t>(precision)].name;
}

Precision parse_precision(std::string_view word) {
  return choose("precision", word, precision_words).precision;
}

bool has_plain_schedule(const Strategy& strategy) {
  const auto& info = choose("schedule", strategy.schedule, schedule::known_schedules());
  return !info.splits_backward && info.stages_per_rank == 1;
}

std::int64_t micro_batches_of(const Strategy& strategy, std::int64_t batch) {
  return batch / (std::int64_t{strategy.data} * strategy.micro_batch);
}

std::string to_string(const Strategy& strategy) {
  std::vector<std::string> words = {text("tensor ", strategy.tensor),
                                    text("pipeline ", strategy.pipeline),
                                    text("data ", strategy.data)};
  if (strategy.level > 0) words.push_back(text("ZeRO-", strategy.level));
  if (strategy.replicate > 1)
    words.push_back(text("in ", strategy.replicate, " rows of ", strategy.shards()));
  if (strategy.offload) words.emplace_back("offload");
  words.push_back(text("micro-batch ", strategy.micro_batch));
  words.push_back(text("recompute ", to_string(strategy.recompute)));
  if (strategy.recompute_layers > 0)
    words.back() += text(" in the first ", counted(strategy.recompute_layers, "block"));
  if (strategy.recompute_stages > 0)
    words.back() += text(" in the first ", counted(strategy.recompute_stages, "stage"));
  // On one stage 1f1b holds one micro-batch, and gpipe holds all.
  if (strategy.pipeline > 1 || strategy.schedule != Strategy().schedule)
    words.push_back(strategy.schedule);
  if (strategy.chunks > 1) words.push_back(text("interleaved in ", strategy.chunks));
  if (strategy.sequence_parallel) words.emplace_back("token shards");
  if (strategy.precision != Precision::Own) words.emplace_back(to_string(strategy.precision));
  return join(words, " · ");
}

Kept parse_kept(const std::vector<std::string>& words) {
  Kept kept;
  const std::vector<std::string> keys = kept_keys();
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
      for (const std::string& name : keys) known = known || name == key;
      if (!known) throw_unknown("key of --keep", key, keys);
      const auto [before, added] = given.emplace(key, value);
      if (!added && before->second != value)
        throw UsageError(text("--keep gives ", key, " twice: ", before->second, " and ", value),
                         {.hint = "Give one of them."});
      set_kept(&kept, key, value);
    }
  return kept;
}

void check(const Kept& kept) {
  for (const NumberKey& key : number_keys())
    if (const auto& number = kept.*key.member) number_of_key(key.name, text(*number), key.least);
  if (kept.level) check_level(*kept.level);
  if (kept.schedule) check_schedule(*kept.schedule);
}

bool describes_run(const Kept& kept) {
  return kept.tensor && (kept.pipeline || kept.data) && kept.micro_batch && kept.recompute;
}

std::string to_string(const Kept& kept) {
  std::vector<std::string> words;
  const auto add = [&](const std::string& key, const auto& value) {
    if (value) words.push_back(text(key, "=", *value));
  };
  for (const NumberKey& number : number_keys()) {
    if (number.name == "chunks") add("schedule", kept.schedule);
    add(number.name, kept.*number.member);
    if (number.name == "micro_batch" && kept.recompute)
      words.push_back(text("recompute=", to_string(*kept.recompute)));
  }
  for (const SwitchKey& flag : switch_keys())
    if (kept.*flag.member)
      words.push_back(text(flag.name, "=", *(kept.*flag.member) ? "yes" : "no"));
  if (kept.precision)
    words.push_back(text("precision=", to_string(*kept.precision)));
  else if (kept.any_precision)
    words.emplace_back("precision=any");
  return join(words, ",");
}

}  // namespace trestle::plan
