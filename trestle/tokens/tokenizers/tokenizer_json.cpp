#include "trestle/tokens/tokenizers/tokenizer_json.h"

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/bpe_tokenizer.h"
#include "trestle/tokens/tokenizers/character_tokenizer.h"
#include "trestle/tokens/tokenizers/json_field.h"
#include "trestle/tokens/tokenizers/split_patterns.h"
#include "trestle/tokens/tokenizers/vocabulary.h"

namespace trestle::tokens {
namespace {

using Otherwise = JsonField::Otherwise;

// Sequences may be nested; a file of nothing but brackets must not exhaust the stack.
constexpr int deepest_sequence = 8;

void read_vocabulary(const JsonField& model, Vocabulary* vocabulary) {
  const JsonField tokens = model.at("vocab");
  vocabulary->reserve(tokens.object().size());
  for (const auto& [spelling, id] : tokens.object().items()) {
    if (!id.is_number_integer()) tokens.invalid(text("has no integer for '", spelling, "'"));
    vocabulary->add_word(spelling, id.get<std::int64_t>());
  }
  const JsonField merges = model.at("merges");
  for (const nlohmann::json& merge : merges.array()) {
    if (merge.is_string()) {
      vocabulary->add_merge_line(merge.get_ref<const std::string&>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      vocabulary->add_merge(merge[0].get_ref<const std::string&>(),
                            merge[1].get_ref<const std::string&>());
    } else {
      merges.invalid("has an element that is not two tokens");
    }
  }
}

void read_model(const JsonField& model, Vocabulary* vocabulary, BpeParts* parts) {
  const std::string type = model.string_or("type", "BPE");
  if (type != "BPE") {
    model.at("type").refuse(text("'", type, "'"),
                            "Supported is byte-level BPE, the model of GPT-2, Llama-3, SmolLM2 and "
                            "Qwen2. A SentencePiece model is read from its own .model file.");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = model.string_or(name, "");
    if (!affix.empty()) {
      model.at(name).refuse(text("'", affix, "'"), "Supported is byte-level BPE without affixes.");
    }
  }
  if (model.has("dropout")) {
    model.at("dropout").refuse("set", "Set it to null: encode() merges without chance.");
  }
  if (model.boolean_or("byte_fallback", Otherwise::False)) {
    model.at("byte_fallback")
        .refuse("true", "Such models come from SentencePiece; read their .model file instead.");
  }
  read_vocabulary(model, vocabulary);
  const std::string unknown = model.string_or("unk_token", "");
  if (!unknown.empty()) parts->unknown = vocabulary->find(unknown);
  parts->fuse_unknown = model.boolean_or("fuse_unk", Otherwise::False);
  parts->ignore_merges = model.boolean_or("ignore_merges", Otherwise::False);
}

void read_normalizer(const JsonField& field, int depth, BpeParts* parts) {
  const std::string& type = field.at("type").string();
  if (type == "Sequence" && depth < deepest_sequence) {
    const JsonField steps = field.at("normalizers");
    for (std::size_t i = 0; i < steps.size(); ++i) read_normalizer(steps.at(i), depth + 1, parts);
  } else if (type == "NFC") {
    parts->normalizations.push_back(Normalization::Nfc);
  } else if (type == "NFD") {
    parts->normalizations.push_back(Normalization::Nfd);
  } else if (type == "NFKC") {
    parts->normalizations.push_back(Normalization::Nfkc);
  } else if (type == "NFKD") {
    parts->normalizations.push_back(Normalization::Nfkd);
  } else {
    field.at("type").refuse(
        text("'", type, "'"),
        "Supported normalizers are NFC, NFD, NFKC, NFKD and sequences of them.");
  }
}

SplitStage split_stage(const JsonField& field) {
  SplitStage stage;
  const JsonField pattern = field.at("pattern");
  if (!pattern.has("Regex")) {
    pattern.refuse("not a Regex", "Write the pattern as {\"Regex\": \"...\"}.");
  }
  stage.pattern = pattern.at("Regex").string();
  if (stage.pattern.empty()) pattern.invalid("is empty");
  const std::string& behavior = field.at("behavior").string();
  const bool inverted = field.boolean_or("invert", Otherwise::False);
  if (behavior == "Isolated") {
    stage.keep = SplitStage::Keep::Everything;
  } else if (behavior == "Removed") {
    stage.keep = inverted ? SplitStage::Keep::Matches : SplitStage::Keep::BetweenMatches;
  } else {
    field.at("behavior").refuse(text("'", behavior, "'"), "Supported are Isolated and Removed.");
  }
  return stage;
}

// Returns whether the bytes are spelled in the alphabet after this pre-tokenizer.
bool read_pre_tokenizer(const JsonField& field, int depth, BpeParts* parts) {
  const std::string& type = field.at("type").string();
  if (type == "Sequence" && depth < deepest_sequence) {
    const JsonField steps = field.at("pretokenizers");
    bool bytes = false;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (bytes) {
        steps.at(i).refuse("after ByteLevel", "Supported is ByteLevel as the last pre-tokenizer.");
      }
      bytes = read_pre_tokenizer(steps.at(i), depth + 1, parts);
    }
    return bytes;
  }
  if (type == "Split") {
    parts->stages.push_back(split_stage(field));
  } else if (type == "Digits") {
    const bool each = field.boolean_or("individual_digits", Otherwise::False);
    parts->stages.push_back({.pattern = each ? R"(\p{N})" : R"(\p{N}+)"});
  } else if (type == "ByteLevel") {
    SplitStage stage;
    if (field.boolean_or("use_regex", Otherwise::True)) stage.pattern = gpt2_pattern;
    stage.add_prefix_space = field.boolean_or("add_prefix_space", Otherwise::True);
    if (!stage.pattern.empty() || stage.add_prefix_space) parts->stages.push_back(stage);
    return true;
  } else {
    field.at("type").refuse(text("'", type, "'"),
                            "Supported pre-tokenizers are ByteLevel, Split, Digits and sequences "
                            "of them that end with ByteLevel.");
  }
  return false;
}

void read_added_tokens(const JsonField& tokens, Vocabulary* vocabulary, BpeParts* parts) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const JsonField field = tokens.at(i);
    AddedToken token;
    token.text = field.at("content").string();
    if (token.text.empty()) continue;
    const std::int64_t id = field.at("id").integer();
    const Id known = vocabulary->find(token.text);
    if (known < 0) {
      vocabulary->add_other(token.text, id);
    } else if (known != id) {
      field.at("id").invalid(
          text("is ", id, ", but the vocabulary has '", token.text, "' with the id ", known));
    }
    token.id = static_cast<Id>(id);
    token.special = field.boolean_or("special", Otherwise::False);
    token.single_word = field.boolean_or("single_word", Otherwise::False);
    token.lstrip = field.boolean_or("lstrip", Otherwise::False);
    token.rstrip = field.boolean_or("rstrip", Otherwise::False);
    token.normalized = field.boolean_or("normalized", Otherwise::False);
    parts->added.push_back(std::move(token));
  }
}

Id checked_id(const JsonField& field) {
  const std::int64_t id = field.integer();
  if (id < 0 || id > INT32_MAX) field.invalid(text("is ", id, ", which is no token id"));
  return static_cast<Id>(id);
}

void read_template(const JsonField& field, BpeParts* parts) {
  const JsonField single = field.at("single");
  bool after_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonField part = single.at(i);
    if (part.has("Sequence")) {
      if (after_text) part.refuse("a second sequence", "Supported is one sequence.");
      after_text = true;
      continue;
    }
    const std::string& name = part.at("SpecialToken").at("id").string();
    const JsonField ids = field.at("special_tokens").at(name).at("ids");
    for (std::size_t k = 0; k < ids.size(); ++k) {
      (after_text ? parts->suffix : parts->prefix).push_back(checked_id(ids.at(k)));
    }
  }
  if (!after_text) single.invalid("has no Sequence");
}

void read_post_processor(const JsonField& field, int depth, BpeParts* parts) {
  const std::string& type = field.at("type").string();
  if (type == "Sequence" && depth < deepest_sequence) {
    const JsonField steps = field.at("processors");
    for (std::size_t i = 0; i < steps.size(); ++i) {
      read_post_processor(steps.at(i), depth + 1, parts);
    }
  } else if (type == "TemplateProcessing") {
    if (!parts->prefix.empty() || !parts->suffix.empty()) {
      field.refuse("a second template", "Supported is one.");
    }
    read_template(field, parts);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    parts->prefix = {checked_id(field.at("cls").at(std::size_t{1}))};
    parts->suffix = {checked_id(field.at("sep").at(std::size_t{1}))};
  } else if (type != "ByteLevel") {  // ByteLevel changes offsets only
    field.at("type").refuse(
        text("'", type, "'"),
        "Supported post-processors are TemplateProcessing, RobertaProcessing, BertProcessing, "
        "ByteLevel and sequences of them.");
  }
}

void check_decoder(const JsonField& field) {
  const std::string& type = field.at("type").string();
  if (type == "ByteLevel") return;
  field.at("type").refuse(text("'", type, "'"), "Supported is the decoder ByteLevel.");
}

std::unique_ptr<Tokenizer> read_bpe(const JsonField& root) {
  BpeParts parts;
  parts.source = root.file();
  Vocabulary vocabulary(root.file());
  read_model(root.at("model"), &vocabulary, &parts);
  if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), &vocabulary, &parts);
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), 0, &parts);
  const bool bytes =
      root.has("pre_tokenizer") && read_pre_tokenizer(root.at("pre_tokenizer"), 0, &parts);
  if (!bytes) {
    throw FormatError("field 'pre_tokenizer' has no ByteLevel, so the tokens are not of bytes",
                      {.file = root.file(),
                       .hint = "Supported is byte-level BPE, the tokenizers of GPT-2, Llama-3, "
                               "SmolLM2 and Qwen2."});
  }
  if (root.has("post_processor")) read_post_processor(root.at("post_processor"), 0, &parts);
  if (root.has("decoder")) check_decoder(root.at("decoder"));
  vocabulary.finish(&parts);
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

// The file that CharacterTokenizer::save() writes.
std::unique_ptr<Tokenizer> read_characters(const JsonField& root) {
  const JsonField model = root.at("model");
  const auto refuse = [&](const JsonField& field, std::string_view what) {
    field.refuse(what,
                 "Supported is byte-level BPE, and WordLevel as the files of trestle's character "
                 "tokenizer have it.");
  };
  const JsonField pre_tokenizer = root.at("pre_tokenizer");
  if (pre_tokenizer.is_null()) refuse(pre_tokenizer, "null");
  const std::string type = pre_tokenizer.string_or("type", "");
  if (type != "Split") refuse(pre_tokenizer, text("of the type '", type, "'"));
  const JsonField pattern = pre_tokenizer.at("pattern");
  if (pattern.string_or("Regex", "") != character_pattern) refuse(pattern, "another pattern");
  if (root.has("normalizer")) refuse(root.at("normalizer"), "set");
  if (root.has("post_processor")) refuse(root.at("post_processor"), "set");
  if (root.has("added_tokens") && root.at("added_tokens").size() > 0) {
    refuse(root.at("added_tokens"), "not empty");
  }
  const JsonField vocabulary = model.at("vocab");
  const std::size_t size = vocabulary.object().size();
  std::vector<std::string> characters(size);
  for (const auto& [character, id] : vocabulary.object().items()) {
    const bool in_range = id.is_number_unsigned() && id.get<std::uint64_t>() < size;
    if (!in_range || !characters[id.get<std::size_t>()].empty()) {
      vocabulary.invalid(
          text("has no id of its own from 0 to ", size - 1, " for '", character, "'"));
    }
    characters[id.get<std::size_t>()] = character;
  }
  return std::make_unique<CharacterTokenizer>(std::move(characters), root.file());
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& path) {
  return parse_tokenizer_json(read_text_file(path), path.string());
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view content, const std::string& file) {
  const nlohmann::json json = parse_json(content, file);
  const JsonField root(json, file);
  return root.at("model").string_or("type", "BPE") == "WordLevel" ? read_characters(root)
                                                                  : read_bpe(root);
}

}  // namespace trestle::tokens
