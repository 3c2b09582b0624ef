#include <nlohmann/json.hpp>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/byte_alphabet.h"
#include "trestle/tokens/tokenizers/split_patterns.h"
#include "trestle/tokens/train_bpe.h"

namespace trestle::tokens {
namespace {

using Json = nlohmann::ordered_json;

Json added_tokens_json(const BpeParts& parts) {
  Json all = Json::array();
  for (const AddedToken& token : parts.added) {
    all.push_back({{"id", token.id},
                   {"content", token.text},
                   {"single_word", token.single_word},
                   {"lstrip", token.lstrip},
                   {"rstrip", token.rstrip},
                   {"normalized", token.normalized},
                   {"special", token.special}});
  }
  return all;
}

Json normalizer_json(const BpeParts& parts) {
  constexpr const char* names[] = {"NFC", "NFD", "NFKC", "NFKD"};
  if (parts.normalizations.empty()) return nullptr;
  Json steps = Json::array();
  for (const Normalization form : parts.normalizations) {
    steps.push_back({{"type", names[static_cast<std::size_t>(form)]}});
  }
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json stage_json(const SplitStage& stage) {
  const bool removed = stage.keep != SplitStage::Keep::Everything;
  return {{"type", "Split"},
          {"pattern", {{"Regex", stage.pattern}}},
          {"behavior", removed ? "Removed" : "Isolated"},
          {"invert", stage.keep == SplitStage::Keep::Matches}};
}

Json byte_level_json(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

// The last stage is ByteLevel's own expression if it is that of GPT-2.
Json pre_tokenizer_json(const BpeParts& parts) {
  Json steps = Json::array();
  bool has_byte_level = false;
  for (std::size_t i = 0; i < parts.stages.size(); ++i) {
    const SplitStage& stage = parts.stages[i];
    const bool last = i + 1 == parts.stages.size();
    const bool own = stage.pattern == gpt2_pattern && stage.keep == SplitStage::Keep::Everything;
    if (last && (own || stage.pattern.empty())) {
      steps.push_back(byte_level_json(stage.add_prefix_space, own));
      has_byte_level = true;
    } else if (stage.add_prefix_space) {
      throw UsageError("a space before the text can be written for the last stage only");
    } else if (!stage.pattern.empty()) {
      steps.push_back(stage_json(stage));
    }
  }
  if (!has_byte_level) steps.push_back(byte_level_json(false, false));
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Json post_processor_json(const BpeParts& parts, const std::vector<std::string>& spellings) {
  if (parts.prefix.empty() && parts.suffix.empty()) return byte_level_json(true, true);
  Json single = Json::array();
  Json special_tokens = Json::object();
  const auto add = [&](Id id) {
    const std::string& name = spellings[static_cast<std::size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    special_tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  for (const Id id : parts.prefix) add(id);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  for (const Id id : parts.suffix) add(id);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special_tokens}};
}

Json model_json(const BpeParts& parts, const std::vector<std::string>& spellings) {
  Json vocabulary = Json::object();
  for (std::size_t id = 0; id < parts.tokens.size(); ++id) {
    if (!spellings[id].empty()) vocabulary.emplace(spellings[id], id);
  }
  Json merges = Json::array();
  for (const Merge& merge : parts.merges) {
    merges.push_back({spellings[static_cast<std::size_t>(merge.left)],
                      spellings[static_cast<std::size_t>(merge.right)]});
  }
  Json unknown = nullptr;
  if (parts.unknown >= 0) unknown = spellings[static_cast<std::size_t>(parts.unknown)];
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", parts.fuse_unknown},
          {"byte_fallback", false},
          {"ignore_merges", parts.ignore_merges},
          {"vocab", vocabulary},
          {"merges", merges}};
}

}  // namespace

void save_tokenizer_json(const BpeParts& parts, const std::filesystem::path& path) {
  const ByteAlphabet alphabet;
  std::vector<std::string> spellings;
  for (const BpeToken& token : parts.tokens) {
    spellings.push_back(token.word ? alphabet.spell(token.bytes) : token.bytes);
  }
  for (const AddedToken& token : parts.added) {
    spellings[static_cast<std::size_t>(token.id)] = token.text;
  }
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens_json(parts)},
                     {"normalizer", normalizer_json(parts)},
                     {"pre_tokenizer", pre_tokenizer_json(parts)},
                     {"post_processor", post_processor_json(parts, spellings)},
                     {"decoder", byte_level_json(true, true)},
                     {"model", model_json(parts, spellings)}};
  write_file(path, file.dump(1) + "\n");
}

}  // namespace trestle::tokens
