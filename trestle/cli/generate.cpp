#include "trestle/generate/write_text.h"

#include <unistd.h>

#include <charconv>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/language/text_model.h"

namespace trestle::cli {

namespace {

struct GenerateArguments {
  std::filesystem::path model;
  std::vector<std::string> prompts;
  std::filesystem::path prompt_file;
  std::string ids;
  std::filesystem::path tokenizer, adapter;
  train::Checkpoint checkpoint = train::Checkpoint::Best;
  generate::ChoiceOptions choice{.temperature = 0.8, .top_k = 0};
  std::int64_t tokens = 128;
  std::vector<std::string> stop;
  std::string temperature, top_p, repetition_penalty, precision = "fp32", devices;
  bool greedy = false, chat = false, special = false, json = false;
};

double number_of(const std::string& flag, const std::string& word) {
  double value = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (problem != std::errc() || end != word.data() + word.size())
    throw UsageError(text(flag, " must be a number, not '", word, "'"));
  return value;
}

std::vector<std::int64_t> parse_ids(const std::string& words) {
  std::vector<std::int64_t> ids;
  for (const std::string& word : split(words, ',')) {
    std::int64_t id = 0;
    const std::string plain = trim(word);
    const auto [end, problem] = std::from_chars(plain.data(), plain.data() + plain.size(), id);
    if (problem != std::errc() || end != plain.data() + plain.size())
      throw UsageError(text("--ids must be token ids such as 5,17,3, not '", words, "'"));
    ids.push_back(id);
  }
  return ids;
}

class Session {
 public:
  Session(const GenerateArguments& arguments, train::TextModel model)
      : arguments_(arguments), model_(std::move(model)), writer_(model_.layers, model_.config) {
    options_.generate.choice = arguments.choice;
    options_.generate.most_tokens = arguments.tokens;
    options_.generate.end_tokens = model_.config.end_tokens;
    options_.generate.tokens = model_.known_tokens();
    options_.stop_words = arguments.stop;
  }

  void write_all() {
    if (!arguments_.ids.empty()) return write_ids();
    if (!model_.tokenizer)
      throw UsageError(text(arguments_.model.string(), ": has no tokenizer"),
                       {.hint = "Name one with --tokenizer, or give token ids with --ids."});
    if (arguments_.chat) return converse();
    const std::vector<std::string> prompts = all_prompts();
    for (std::size_t i = 0; i < prompts.size() && !interrupted(); ++i) {
      const auto specials =
          arguments_.special ? tokens::Specials::Recognised : tokens::Specials::AsText;
      options_.generate.text_number = static_cast<std::int64_t>(i);
      if (!arguments_.json && prompts.size() > 1 && i > 0) std::cout << "\n";
      if (!arguments_.json) std::cout << prompts[i] << std::flush;
      const auto ids = generate::prompt_ids(*model_.tokenizer, prompts[i], specials);
      report(prompts[i], ids, write(ids));
    }
  }

 private:
  std::vector<std::string> all_prompts() const {
    std::vector<std::string> prompts = arguments_.prompts;
    if (!arguments_.prompt_file.empty())
      for (const std::string& line : split(read_text_file(arguments_.prompt_file), '\n'))
        if (!line.empty()) prompts.push_back(line);
    if (prompts.empty())
      throw UsageError("there is no prompt",
                       {.hint = "Give one with --prompt \"Once upon a time\"."});
    return prompts;
  }

  generate::Written write(const std::vector<std::int64_t>& ids) {
    generate::WriteOptions options = options_;
    options.on_text = [&](std::string_view words) {
      if (!arguments_.json) std::cout << words << std::flush;
      return !interrupted();
    };
    return generate::write_text(writer_, *model_.tokenizer, ids, options);
  }

  void report(const std::string& prompt, const std::vector<std::int64_t>& ids,
              const generate::Written& written) {
    const generate::Generated& made = written.generated;
    if (arguments_.json) {
      std::cout << nlohmann::ordered_json{{"prompt", prompt},
                                          {"prompt_ids", ids},
                                          {"text", written.text},
                                          {"ids", made.ids},
                                          {"ended", generate::to_word(made.ended)},
                                          {"prompt_seconds", made.prompt_seconds},
                                          {"answer_seconds", made.answer_seconds}}
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << std::endl;
      return;
    }
    std::cout << std::endl;
    if (made.ended == generate::Ended::Context)
      std::cerr << "trestle: the text ends because the model's context of " << model_.config.context
                << " tokens is full\n";
  }

  void write_ids() {
    const std::vector<std::int64_t> ids = parse_ids(arguments_.ids);
    const generate::Generated made = generate::generate(writer_, ids, options_.generate);
    if (arguments_.json)
      std::cout << nlohmann::ordered_json{{"prompt_ids", ids},
                                          {"ids", made.ids},
                                          {"ended", generate::to_word(made.ended)}}
                       .dump()
                << std::endl;
    else
      std::cout << join(made.ids, ",") << std::endl;
  }

  // Reads lines from the standard input. Ctrl-C ends an answer; at the prompt it ends the session.
  void converse() {
    if (!model_.chat)
      throw UsageError(text(arguments_.model.string(), ": has no chat template: ", model_.no_chat));
    std::vector<tokens::Message> messages;
    const bool terminal = isatty(STDIN_FILENO) != 0;
    std::vector<std::string> first = arguments_.prompts;
    while (true) {
      std::string line;
      if (!first.empty()) {
        line = first.front();
        first.erase(first.begin());
      } else {
        if (!arguments_.prompts.empty() && !terminal) return;
        if (terminal) std::cout << "> " << std::flush;
        if (!std::getline(std::cin, line) || interrupted()) return;
      }
      if (line.empty()) continue;
      messages.push_back({"user", line});
      const auto encoded =
          model_.chat->encode(*model_.tokenizer, messages, tokens::AnswerBegin::Write);
      const std::vector<std::int64_t> ids(encoded.begin(), encoded.end());
      const generate::Written written = write(ids);
      report(line, ids, written);
      messages.push_back({"assistant", written.text});
    }
  }

  const GenerateArguments& arguments_;
  train::TextModel model_;
  generate::LanguageModel writer_;
  generate::WriteOptions options_;
};

int perform_generate(const GenerateArguments& arguments) {
  train::TextModelOptions options{.checkpoint = arguments.checkpoint,
                                  .tokenizer = arguments.tokenizer,
                                  .adapters = arguments.adapter};
  if (arguments.precision == "bf16") options.type = at::kBFloat16;
  if (!arguments.devices.empty()) options.devices = parse_devices(arguments.devices);
  Session session(arguments, train::open_text_model(arguments.model, options));
  stop_on_interrupt("trestle: the text ends here. A second signal ends the program.");
  session.write_all();
  return interrupted() ? interrupted_exit_code() : 0;
}

void read_choice(GenerateArguments& arguments) {
  generate::ChoiceOptions& choice = arguments.choice;
  if (!arguments.temperature.empty())
    choice.temperature = number_of("--temperature", arguments.temperature);
  if (!arguments.top_p.empty()) choice.top_p = number_of("--top-p", arguments.top_p);
  if (!arguments.repetition_penalty.empty())
    choice.repetition_penalty = number_of("--repetition-penalty", arguments.repetition_penalty);
  if (arguments.greedy) choice.temperature = 0;
  generate::check_choice(choice);
}

}  // namespace

void add_generate(Verb app) {
  Verb verb = app.add_verb("generate", "Continue a text, or answer, with a language model");
  auto arguments = std::make_shared<GenerateArguments>();
  verb.add("model", arguments->model,
           "A run folder, a folder of Hugging Face (config.json and weights), or a GGUF file")
      .required()
      .type("MODEL");
  verb.add("--prompt", arguments->prompts, "The text to continue; may be given several times")
      .one_value_each()
      .type("TEXT");
  verb.add("--prompts", arguments->prompt_file, "A file with a prompt in each line").type("FILE");
  verb.add("--ids", arguments->ids, "Token ids instead of a text, such as 5,17,3").type("IDS");
  verb.add_switch("--chat", arguments->chat, "A conversation: each line of the input is a message");
  verb.add_number(
          "--tokens", {1, 1'000'000'000}, [arguments](std::int64_t n) { arguments->tokens = n; },
          "The most tokens of an answer (default 128)")
      .type("N");
  verb.add("--temperature", arguments->temperature,
           "Divides the scores before a token is drawn (default 0.8); 0 = the largest score")
      .type("T");
  verb.add_switch("--greedy", arguments->greedy, "Always the token with the largest score");
  verb.add_number(
          "--top-k", {0, 1'000'000'000},
          [arguments](std::int64_t k) { arguments->choice.top_k = k; },
          "Draw from the K most probable tokens alone; 0 = from all (default)")
      .type("K");
  verb.add("--top-p", arguments->top_p,
           "Draw from the most probable tokens that have this share together (default 1)")
      .type("P");
  verb.add("--repetition-penalty", arguments->repetition_penalty,
           "Lower the scores of tokens that the text has already, such as by 1.1 (default 1)")
      .type("X");
  verb.add_number(
          "--seed", {0, std::int64_t{1} << 62},
          [arguments](std::int64_t seed) {
            arguments->choice.seed = static_cast<std::uint64_t>(seed);
          },
          "Seed of the random choice (default 0)")
      .type("N");
  verb.add("--stop", arguments->stop, "End before this text; may be given several times")
      .one_value_each()
      .type("TEXT");
  verb.add_switch("--special", arguments->special,
                  "The spelling of a special token in a prompt is that token, not text");
  add_checkpoint_flag(verb, arguments->checkpoint);
  verb.add("--tokenizer", arguments->tokenizer, "Another tokenizer than the model's").type("FILE");
  add_adapter_option(verb, arguments->adapter);
  verb.add("--precision", arguments->precision, "The type of the weights: fp32 or bf16")
      .one_of({"fp32", "bf16"})
      .type("TYPE");
  verb.add("--devices", arguments->devices,
           "cpu, virtual:2x512MiB, cuda:0,cuda:1: the blocks are divided over them (default: cpu)")
      .type("DEVICES");
  verb.add_switch("--json", arguments->json, "Print one JSON object per line, for each prompt");
  verb.footer(
      examples({"trestle generate runs/gpt_characters --prompt \"ROMEO.\" --tokens 200",
                "trestle generate smollm.gguf --chat",
                "trestle generate smollm.gguf --prompt \"The capital of France is\" --greedy "
                "--tokens 8 --json",
                "trestle generate gpt2 --ids 464,3139 --tokens 16"}) +
      exit_codes());
  verb.action([arguments] {
    read_choice(*arguments);
    return perform_generate(*arguments);
  });
}

}  // namespace trestle::cli
