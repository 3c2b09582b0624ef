#include "trestle/generate/write_text.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/base/utf8.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/lost_pages.h"
#include "trestle/cli/verbs.h"
#include "trestle/device/spin_guard.h"
#include "trestle/train/language/text_model.h"

namespace trestle::cli {

namespace {

struct GenerateArguments {
  std::filesystem::path model;
  std::vector<std::string> prompts;
  std::filesystem::path prompt_file;
  std::string ids;
  std::filesystem::path tokenizer, adapter, chat_template;
  train::Checkpoint checkpoint = train::Checkpoint::Best;
  generate::ChoiceOptions choice{.temperature = 0.8, .top_k = 0};
  std::int64_t tokens = 128, batch = 8;
  std::vector<std::string> stop;
  std::string today;
  std::string temperature, top_p, repetition_penalty, precision = "fp32", devices;
  bool greedy = false, slide = false, chat = false, special = false, json = false;
};

double number_of(const std::string& flag, const std::string& word) {
  double value = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (problem != std::errc() || end != word.data() + word.size())
    throw UsageError(text(flag, " must be a number, not '", word, "'"));
  return value;
}

// A closed pipe has no reader.
bool goes_on() { return !interrupted() && std::cout.good(); }

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

// Prints the texts of a batch in the order of their prompts, each with its begin as it is written:
// the words of a text are held back until the texts before it have ended.
class Printer {
 public:
  Printer(const GenerateArguments& arguments, std::int64_t context)
      : json_(arguments.json), context_(context) {}

  struct Part {
    std::string prompt;
    std::vector<std::int64_t> ids;
    std::string begin = {};  // printed before the text
    std::string held = {};
    std::optional<generate::Written> written = {};
  };
  void start(std::vector<Part> parts) {
    parts_ = std::move(parts);
    current_ = 0;
    print();
  }
  void add(std::size_t part, std::string_view words) {
    parts_[part].held += words;
    if (part == current_) print();
  }
  void end(std::size_t part, const generate::Written& written) {
    parts_[part].written = written;
    while (current_ < parts_.size() && parts_[current_].written) {
      print();
      print_end(parts_[current_]);
      ++current_;
    }
    if (current_ < parts_.size()) print();
  }
  // Ends a line that is not whole, so that an error message begins a line.
  void break_line() {
    if (inside_line_) std::cout << std::endl;
    inside_line_ = false;
  }

 private:
  void print() {
    Part& part = parts_[current_];
    if (!json_) {
      std::cout << part.begin << part.held << std::flush;
      const std::string& last = part.held.empty() ? part.begin : part.held;
      if (!last.empty()) inside_line_ = last.back() != '\n';
    }
    part.begin.clear();
    part.held.clear();
  }
  void print_end(const Part& part) {
    const generate::Generated& made = part.written->generated;
    if (json_) {
      std::cout << nlohmann::ordered_json{{"prompt", part.prompt},
                                          {"prompt_ids", part.ids},
                                          {"text", part.written->text},
                                          {"ids", made.ids},
                                          {"ended", generate::to_word(made.ended)},
                                          {"prompt_seconds", made.prompt_seconds},
                                          {"answer_seconds", made.answer_seconds}}
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << std::endl;
      return;
    }
    std::cout << std::endl;
    inside_line_ = false;
    if (made.ended == generate::Ended::Context)
      std::cerr << "trestle: the text ends because the model's context of " << context_
                << " tokens is full (--slide continues it)\n";
  }

  bool json_;
  std::int64_t context_;
  std::vector<Part> parts_;
  std::size_t current_ = 0;
  bool inside_line_ = false;
};

class Session {
 public:
  Session(const GenerateArguments& arguments, train::TextModel model)
      : arguments_(arguments),
        model_(std::move(model)),
        writer_(model_.layers, model_.config),
        printer_(arguments, model_.config.context) {
    options_.generate.choice = arguments.choice;
    options_.generate.most_tokens = arguments.tokens;
    options_.generate.slide = arguments.slide;
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
    write_prompts(all_prompts());
  }

 private:
  std::vector<std::string> all_prompts() const {
    std::vector<std::string> prompts = arguments_.prompts;
    if (!arguments_.prompt_file.empty()) {
      const std::string content = read_text_file(arguments_.prompt_file);
      for (std::string line :
           split(without_byte_order_mark(content, arguments_.prompt_file.string()), '\n')) {
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty()) prompts.push_back(line);
      }
    }
    if (prompts.empty())
      throw UsageError("there is no prompt",
                       {.hint = "Give one with --prompt \"Once upon a time\"."});
    return prompts;
  }

  // A prompt gives the same text alone and among others: the random numbers of a text depend on
  // the seed and on the number of equal prompts before it.
  void write_prompts(const std::vector<std::string>& prompts) {
    const auto specials =
        arguments_.special ? tokens::Specials::Recognised : tokens::Specials::AsText;
    std::vector<generate::Prompt> encoded;
    std::map<std::string, std::int64_t> seen;
    for (const std::string& prompt : prompts)
      encoded.push_back(
          {generate::prompt_ids(*model_.tokenizer, prompt, specials), seen[prompt]++});
    generate::check_prompts(model_.config, encoded);
    const auto size = static_cast<std::size_t>(arguments_.batch);
    for (std::size_t first = 0; first < prompts.size() && goes_on(); first += size) {
      const std::size_t last = std::min(prompts.size(), first + size);
      std::vector<generate::Prompt> batch;
      std::vector<Printer::Part> parts;
      for (std::size_t i = first; i < last; ++i) {
        batch.push_back(encoded[i]);
        parts.push_back({prompts[i], encoded[i].ids, (i > 0 ? "\n" : "") + prompts[i]});
      }
      write(batch, std::move(parts));
    }
  }

  std::vector<generate::Written> write(const std::vector<generate::Prompt>& batch,
                                       std::vector<Printer::Part> parts) {
    generate::WriteOptions options = options_;
    options.on_text = [&](std::size_t text, std::string_view words) {
      printer_.add(text, words);
      return true;
    };
    // Also a token without text, such as half a character, lets a signal end the texts.
    options.generate.on_token = [](std::size_t, std::int64_t) { return goes_on(); };
    printer_.start(std::move(parts));
    try {
      return generate::write_batch(
          writer_, *model_.tokenizer, batch, options,
          [&](std::size_t text, const generate::Written& written) { printer_.end(text, written); });
    } catch (...) {
      printer_.break_line();
      throw;
    }
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

  // The ids of a conversation with room for an answer: without the oldest messages and their
  // answers, if all are too long. Empty if the last message alone fills the context; it is then
  // removed.
  std::vector<std::int64_t> fit(std::vector<tokens::Message>& messages) const {
    const std::int64_t context = model_.config.context;
    const std::int64_t room = std::max<std::int64_t>(std::min(arguments_.tokens, context / 4), 1);
    std::int64_t forgotten = 0;
    while (true) {
      const auto encoded =
          model_.chat->encode(*model_.tokenizer, messages, tokens::AnswerBegin::Write);
      const std::int64_t count = std::ssize(encoded);
      const bool is_last = messages.size() < 3;
      if (count + room > context && !is_last) {
        messages.erase(messages.begin(), messages.begin() + 2);
        ++forgotten;
        continue;
      }
      if (forgotten > 0)
        std::cerr << text("trestle: the conversation fills the model's context of ", context,
                          " tokens: the model no longer sees the oldest ",
                          counted(forgotten, "message"), " and the answers to them\n");
      if (count < context) return {encoded.begin(), encoded.end()};
      std::cerr << text("trestle: the message is left out: with its template it has ", count,
                        " tokens, and the model's context ", context, ". Send a shorter one.\n");
      messages.pop_back();
      return {};
    }
  }

  // Reads lines from the standard input. Ctrl-C ends an answer; at the prompt it ends the session.
  void converse() {
    if (!model_.chat) throw UsageError(text("--chat needs a chat template. ", model_.no_chat));
    if (!arguments_.today.empty()) model_.chat->set_today(arguments_.today);
    std::vector<tokens::Message> messages;
    const bool terminal = isatty(STDIN_FILENO) != 0;
    std::vector<std::string> first = arguments_.prompts;
    while (goes_on()) {
      std::string line;
      if (!first.empty()) {
        line = first.front();
        first.erase(first.begin());
      } else {
        if (!arguments_.prompts.empty() && !terminal) return;
        // Before the prompt: a signal that came between it and reading would wait for a line.
        watch_interrupts();
        if (interrupted()) return;
        if (terminal) std::cout << "> " << std::flush;
        if (!std::getline(std::cin, line)) {
          if (terminal) std::cout << std::endl;  // after Ctrl-D
          return;
        }
      }
      if (line.empty()) continue;
      messages.push_back({"user", line});
      const std::vector<std::int64_t> ids = fit(messages);
      if (ids.empty()) continue;
      if (terminal)
        stop_on_interrupt("\ntrestle: the answer ends here; a second signal ends the program");
      const generate::Written written = write({{ids}}, {{line, ids}}).front();
      if (terminal) forget_ctrl_c();
      messages.push_back({"assistant", written.text});
    }
  }

  const GenerateArguments& arguments_;
  train::TextModel model_;
  generate::LanguageModel writer_;
  generate::WriteOptions options_;
  Printer printer_;
};

int perform_generate(const GenerateArguments& arguments) {
  train::TextModelOptions options{.checkpoint = arguments.checkpoint,
                                  .tokenizer = arguments.tokenizer,
                                  .chat_template = arguments.chat_template,
                                  .adapters = arguments.adapter};
  options.type = train::parse_weights_type(arguments.precision, "--precision");
  if (!arguments.devices.empty()) options.devices = parse_devices(arguments.devices);
  report_lost_pages();
  const SpinGuard guard;
  Session session(arguments, train::open_text_model(arguments.model, options));
  stop_on_interrupt("\ntrestle: the text ends here; a second signal ends the program\n");
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
  verb.add_number(
          "--batch", {1, 100'000}, [arguments](std::int64_t n) { arguments->batch = n; },
          "The most prompts that are continued at once (default 8); each gives the text that it "
          "gives alone")
      .type("N");
  verb.add("--ids", arguments->ids, "Token ids instead of a text, such as 5,17,3").type("IDS");
  verb.add_switch(
      "--chat", arguments->chat,
      "A conversation: each line of the input is a message; or those of --prompt alone");
  verb.add("--chat-template", arguments->chat_template,
           "With --chat: another template than the model's. A text file (docs/text.md), a .jinja "
           "file that trestle knows, a model's folder or a GGUF file")
      .type("FILE");
  verb.add("--today", arguments->today,
           "With --chat: the date that the template writes, such as \"26 Jul 2024\"")
      .type("DATE");
  verb.add_number(
          "--tokens", {1, 1'000'000'000}, [arguments](std::int64_t n) { arguments->tokens = n; },
          "The most tokens of an answer (default 128)")
      .type("N");
  verb.add("--temperature", arguments->temperature,
           "Divides the scores before a token is drawn (default 0.8); 0 = the largest score")
      .type("T");
  verb.add_switch("--slide", arguments->slide,
                  "Continue behind the end of the model's context: it then sees the last half of a "
                  "context");
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
  verb.add("--precision", arguments->precision,
           "The type of the weights: fp32, bf16 or int8, which reads a quarter of "
           "the bytes of fp32 for each token")
      .one_of({"fp32", "bf16", "int8"})
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
  verb.action([verb, arguments] {
    if (arguments->chat)
      refuse_without_effect(verb, {"--ids", "--prompts", "--batch"}, "with --chat");
    else
      refuse_without_effect(verb, {"--chat-template", "--today"}, "without --chat");
    if (!arguments->ids.empty())
      refuse_without_effect(verb, {"--prompt", "--prompts", "--batch"}, "with --ids");
    read_choice(*arguments);
    return perform_generate(*arguments);
  });
}

}  // namespace trestle::cli
