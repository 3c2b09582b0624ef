#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/verbs.h"
#include "trestle/tokens/add_tokens.h"
#include "trestle/tokens/files/prepare.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/character_tokenizer.h"
#include "trestle/tokens/train_bpe.h"
#include "trestle/train/progress/bar.h"

namespace trestle::cli {

namespace {

struct PrepareArguments {
  std::vector<std::string> sources;
  std::string tokenizer = "bytes";
  std::string end_token = "auto";
  std::string validation;
  std::string chat;
  std::string today;
  std::vector<std::string> added, added_special;
  tokens::PrepareOptions options;
  bool json = false;
};

// The token that ends a document: the one of this spelling, or the usual one.
std::optional<tokens::Id> end_token_of(const tokens::Tokenizer& tokenizer,
                                       const std::string& spelling) {
  if (spelling == "none") return std::nullopt;
  if (spelling == "auto") {
    if (!tokenizer.suffix().empty()) return std::nullopt;  // the tokenizer adds it
    for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
      if (const tokens::Id id = tokenizer.find(usual); id >= 0) return id;
    return std::nullopt;
  }
  const tokens::Id id = tokenizer.find(spelling);
  if (id < 0)
    throw UsageError(text("--end: the tokenizer has no token '", spelling, "'"),
                     {.hint = "Give the spelling of a token, auto or none."});
  return id;
}

std::vector<tokens::NewToken> new_tokens(const PrepareArguments& arguments) {
  std::vector<tokens::NewToken> all;
  for (const std::string& spelling : arguments.added) all.push_back({.spelling = spelling});
  for (const std::string& spelling : arguments.added_special)
    all.push_back({.spelling = spelling, .special = true});
  return all;
}

void print_prepared(const tokens::Prepared& made, const PrepareArguments& arguments,
                    const tokens::Tokenizer& tokenizer) {
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"folder", arguments.options.out.string()},
                                        {"documents", made.documents},
                                        {"empty_documents", made.empty_documents},
                                        {"bytes", made.bytes},
                                        {"training_tokens", made.training_tokens},
                                        {"validation_tokens", made.validation_tokens},
                                        {"vocabulary", tokenizer.size()},
                                        {"files", made.files}}
                     .dump()
              << std::endl;
    return;
  }
  std::cout << "wrote " << counted(made.training_tokens, "token") << " for training and "
            << counted(made.validation_tokens, "token") << " for validation to "
            << arguments.options.out.string() << "\n      " << counted(made.documents, "document")
            << ", " << format_bytes(made.bytes) << " of text, a vocabulary of "
            << counted(tokenizer.size(), "token");
  if (made.empty_documents > 0) std::cout << " · " << made.empty_documents << " empty, left out";
  std::cout << std::endl;
  if (made.repaired_documents > 0)
    std::cerr << "trestle: " << counted(made.repaired_documents, "document")
              << " with bytes that are not UTF-8; each such byte became U+FFFD\n";
  if (!arguments.options.prompt_key.empty() && !arguments.options.chat &&
      !arguments.options.end_token && tokenizer.suffix().empty())
    std::cerr << "trestle: this tokenizer has no end token: the model cannot learn where an answer "
                 "ends\n";
}

void refuse_keys_without_effect(const Verb& verb, const std::string& prompt_key) {
  if (prompt_key.empty())
    refuse_without_effect(verb, {"--answer-key"}, "without --prompt-key");
  else
    refuse_without_effect(verb, {"--key"}, "with --prompt-key");
}

int perform_prepare(PrepareArguments arguments) {
  tokens::PrepareOptions& options = arguments.options;
  if (!arguments.validation.empty()) {
    try {
      std::size_t used = 0;
      options.validation = std::stod(arguments.validation, &used);
      if (used != arguments.validation.size()) throw std::invalid_argument("");
    } catch (const std::logic_error&) {
      throw UsageError(
          text("--validation must be a share such as 0.1, not '", arguments.validation, "'"));
    }
  }
  std::unique_ptr<tokens::Tokenizer> tokenizer;
  if (arguments.tokenizer == "characters") {
    for (const std::string& source : arguments.sources)
      if (source == "-" || std::filesystem::is_fifo(source) ||
          std::filesystem::is_character_file(source))
        throw UsageError(text(source == "-" ? "the standard input" : source,
                              " can be read only once, and its characters are known at its end"),
                         {.hint = "Save the text in a file, or use --tokenizer bytes."});
    auto characters = tokens::character_tokenizer(read_sources(arguments.sources, options));
    options.save_tokenizer = [made = characters.get()](const std::filesystem::path& folder) {
      made->save(folder / "tokenizer.json");
    };
    tokenizer = std::move(characters);
  } else {
    tokenizer = tokens::open_tokenizer(arguments.tokenizer);
    options.save_tokenizer = [&](const std::filesystem::path& folder) {
      tokens::copy_tokenizer(arguments.tokenizer, folder);
    };
  }
  if (const auto added = new_tokens(arguments); !added.empty()) {
    tokenizer = tokens::add_tokens(*tokenizer, added);
    options.save_tokenizer = [copy = options.save_tokenizer,
                              &tokenizer](const std::filesystem::path& folder) {
      copy(folder);
      tokens::save_added_tokens(*tokenizer, folder);
    };
  }
  if (!arguments.chat.empty()) options.chat = tokens::open_chat_template(arguments.chat);
  if (!arguments.today.empty()) options.chat->set_today(arguments.today);
  if (!options.chat) options.end_token = end_token_of(*tokenizer, arguments.end_token);
  stop_on_interrupt("\ntrestle: stopping; nothing will be written\n");
  {
    const auto bar = arguments.json ? train::count_bar("") : train::count_bar("prepared");
    options.progress = [&](std::int64_t done, std::int64_t all) {
      if (bar && !arguments.json && all > 0) bar(done, all);
      return !interrupted();
    };
    const tokens::Prepared made = prepare(arguments.sources, *tokenizer, options);
    print_prepared(made, arguments, *tokenizer);
  }
  return 0;
}

void add_prepare(Verb app) {
  Verb verb = app.add_verb("prepare", "Write texts as token files for training");
  auto arguments = std::make_shared<PrepareArguments>();
  verb.add("sources", arguments->sources,
           "Text files, folders of .txt, .md and .jsonl files, or - for the standard input")
      .required()
      .type("SOURCE");
  verb.add("--out", arguments->options.out, "The folder of token files").required().type("DIR");
  verb.add("--tokenizer", arguments->tokenizer,
           "bytes (default), characters (of the text), or a tokenizer.json, a folder with one, "
           "vocab.json and merges.txt, a SentencePiece .model, or a GGUF file")
      .type("TOKENIZER");
  verb.add("--add-token", arguments->added,
           "A new token behind those of the tokenizer, such as <|tool|>, found wherever a text has "
           "its spelling; may be given several times")
      .one_value_each()
      .type("TEXT");
  verb.add("--add-special", arguments->added_special,
           "The same for a control token: its spelling in a text is ordinary characters, and chat "
           "templates write the token")
      .one_value_each()
      .type("TEXT");
  verb.add("--end", arguments->end_token,
           "The token after each document: its spelling, none, or auto = <|endoftext|>, "
           "<|end_of_text|> or </s> where the tokenizer has it (default)")
      .type("TOKEN");
  verb.add("--validation", arguments->validation,
           "The share of the documents for validation; of a single document, its end (default 0.1)")
      .type("SHARE");
  verb.add("--key", arguments->options.jsonl_key,
           "The key of the text in a .jsonl file (default text)")
      .type("KEY");
  verb.add("--prompt-key", arguments->options.prompt_key,
           "The key of the prompt in a .jsonl file of prompts and answers: the loss is that of the "
           "answers alone")
      .type("KEY");
  verb.add("--answer-key", arguments->options.answer_key,
           "--prompt-key: the key of the answer (default answer)")
      .type("KEY");
  verb.add("--chat", arguments->chat,
           "--prompt-key: write each pair as a conversation, which generate --chat continues: a "
           "folder or file of a chat template, or a GGUF file with one")
      .type("TEMPLATE");
  verb.add("--today", arguments->today,
           "With --chat: the date that the template writes, such as \"26 Jul 2024\"; the template "
           "that is saved keeps it")
      .type("DATE");
  verb.add("--separator", arguments->options.separator, "A line that ends a document, such as %")
      .type("LINE");
  verb.add_number(
          "--shard", {1, std::int64_t{1} << 30},
          [arguments](std::int64_t n) { arguments->options.shard_tokens = n; },
          "The most tokens of a file (default 100000000)")
      .type("N");
  verb.add_number(
          "--threads", {1, 4096},
          [arguments](std::int64_t n) { arguments->options.threads = static_cast<int>(n); },
          "Threads (default: all cores); they do not change the result")
      .type("N");
  add_overwrite_flag(verb, arguments->options.overwrite);
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.footer(
      examples({"trestle text prepare shakespeare.txt --tokenizer characters --out data/plays",
                "trestle text prepare books articles.jsonl --key body --tokenizer "
                "gpt2/tokenizer.json --out data/books"}) +
      exit_codes());
  verb.action([verb, arguments] {
    refuse_keys_without_effect(verb, arguments->options.prompt_key);
    if (arguments->chat.empty()) refuse_without_effect(verb, {"--today"}, "without --chat");
    return perform_prepare(*arguments);
  });
}

struct TrainTokenizerArguments {
  std::vector<std::string> sources;
  std::filesystem::path out;
  tokens::TrainBpeOptions options;
  tokens::PrepareOptions reading;
  Overwrite overwrite = Overwrite::Refuse;
};

int perform_train_tokenizer(const TrainTokenizerArguments& arguments) {
  if (arguments.out.extension() != ".json")
    throw UsageError(text("--out ", arguments.out.string(), ": must end in .json, by which a ",
                          "tokenizer's file is recognised"));
  refuse_overwriting({arguments.out}, arguments.overwrite, "--out");
  const std::string all = read_sources(arguments.sources, arguments.reading);
  if (all.empty()) throw UsageError("the sources have no text");
  const std::vector<std::string_view> texts = {all};
  const auto parts = tokens::train_bpe(texts, arguments.options);
  tokens::save_tokenizer_json(parts, arguments.out);
  std::cout << "wrote " << counted(tokens::open_tokenizer(arguments.out)->size(), "token") << " to "
            << arguments.out.string() << std::endl;
  return 0;
}

void add_train_tokenizer(Verb app) {
  Verb verb = app.add_verb("train-tokenizer", "Learn a byte-level BPE tokenizer from texts");
  auto arguments = std::make_shared<TrainTokenizerArguments>();
  verb.add("sources", arguments->sources, "Text files, folders, or - for the standard input")
      .required()
      .type("SOURCE");
  verb.add("--out", arguments->out, "The tokenizer.json to write").required().type("FILE");
  verb.add_number(
          "--vocabulary", {257, 10'000'000},
          [arguments](std::int64_t n) {
            arguments->options.vocabulary_size = static_cast<tokens::Id>(n);
          },
          "Number of tokens (default 8192)")
      .type("N");
  verb.add("--key", arguments->reading.jsonl_key,
           "The key of the text in a .jsonl file (default text)")
      .type("KEY");
  verb.add("--prompt-key", arguments->reading.prompt_key,
           "The key of the prompt in a .jsonl file of prompts and answers")
      .type("KEY");
  verb.add("--answer-key", arguments->reading.answer_key,
           "--prompt-key: the key of the answer (default answer)")
      .type("KEY");
  add_overwrite_flag(verb, arguments->overwrite);
  verb.footer(
      examples({"trestle text train-tokenizer books --vocabulary 4096 --out tokenizer.json"}) +
      exit_codes());
  verb.action([verb, arguments] {
    refuse_keys_without_effect(verb, arguments->reading.prompt_key);
    return perform_train_tokenizer(*arguments);
  });
}

}  // namespace

void add_text(Verb app) {
  Verb verb = app.add_verb("text", "Turn texts into tokens: prepare, train-tokenizer");
  verb.require_verb();
  verb.footer(
      examples({"trestle text prepare shakespeare.txt --tokenizer characters --out data/plays",
                "trestle text train-tokenizer books --vocabulary 4096 --out tokenizer.json",
                "trestle text prepare books --tokenizer tokenizer.json --out data/books"}));
  add_prepare(verb);
  add_train_tokenizer(verb);
}

}  // namespace trestle::cli
