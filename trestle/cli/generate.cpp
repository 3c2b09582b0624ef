#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <functional>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/cli/generate_arguments.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/lost_pages.h"
#include "trestle/cli/text_ranks.h"
#include "trestle/cli/text_session.h"
#include "trestle/cli/verbs.h"
#include "trestle/device/spin_guard.h"
#include "trestle/train/language/text_model.h"

namespace trestle::cli {

namespace {

double number_of(const std::string& flag, const std::string& word) {
  double value = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (problem != std::errc() || end != word.data() + word.size())
    throw UsageError(text(flag, " must be a number, not '", word, "'"));
  return value;
}

bool reads_lines(const GenerateArguments& arguments) {
  return arguments.chat && arguments.prompts.empty();
}

bool reads_null_device() {
  struct stat input {
  }, null{};
  return fstat(STDIN_FILENO, &input) == 0 && stat("/dev/null", &null) == 0 &&
         S_ISCHR(input.st_mode) && input.st_rdev == null.st_rdev;
}

// Rank processes share no terminal: a launcher gives rank 0 /dev/null in its place.
void refuse_terminal_of_processes(const GenerateArguments& arguments) {
  if (reads_lines(arguments) && (isatty(STDIN_FILENO) != 0 || reads_null_device()))
    throw UsageError("--chat cannot read a terminal over ranks that are processes",
                     {.hint = "Use threads (--ranks threads:2), send lines through a pipe, or give "
                              "the messages with --prompt."});
}

train::TextModelOptions options_of(const GenerateArguments& arguments) {
  return {.checkpoint = arguments.checkpoint,
          .type = train::parse_weights_type(arguments.precision, "--precision"),
          .tokenizer = arguments.tokenizer,
          .chat_template = arguments.chat_template,
          .adapters = arguments.adapter};
}

int generate_on_rank(const GenerateArguments& arguments, const ModelRank& rank) {
  const bool leads = rank.ranks.reports();
  if (rank.is_process() && leads) refuse_terminal_of_processes(arguments);
  report_lost_pages();
  const SpinGuard guard;
  const TextRanks texts(rank.ranks.group());
  TextSession session(arguments, train::open_text_model(arguments.on.model, rank.options), texts);
  if (leads) {
    stop_on_interrupt("\ntrestle: the text ends here; a second signal ends the program\n");
    session.write_all();
    texts.end();
  } else if (rank.is_process()) {
    session.follow({.stop = interrupted,
                    .begins = [] { stop_on_interrupt(""); },  // rank 0 prints the message
                    .waits = watch_interrupts});
  } else {  // rank 0 gets the signals of threads
    session.follow({});
  }
  return code_of_signals(rank.ranks.alone() ? nullptr : rank.world);
}

int perform_generate(GenerateArguments& arguments, const std::function<void()>& check,
                     const std::vector<std::string>& words) {
  ModelRanks& on = arguments.on;
  on.ranks.words = words;
  on.ranks.check = [&](int) {
    if (!on.ranks.ranks.starts_with("threads")) refuse_terminal_of_processes(arguments);
  };
  const auto prepare = [&] {
    check();
    on.options = options_of(arguments);
  };
  return on_model_ranks(on, prepare,
                        [&](const ModelRank& rank) { return generate_on_rank(arguments, rank); });
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

void add_generate(Verb app, const std::vector<std::string>& words) {
  Verb verb = app.add_verb("generate", "Continue a text, or answer, with a language model");
  auto arguments = std::make_shared<GenerateArguments>();
  verb.add("model", arguments->on.model,
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
  verb.add("--devices", arguments->on.devices,
           "cpu, virtual:2x512MiB, cuda:0,cuda:1: the blocks are divided over them (default: cpu). "
           "With several ranks one for each, or one for all")
      .type("DEVICES");
  add_model_rank_flags(verb, arguments->on, ". --chat on a terminal takes threads");
  verb.add_switch(
      "--json", arguments->json,
      "Print one JSON object per line, for each prompt. smallest_gap is how close the closest "
      "choice of a token was, in scores (greedy: the largest minus the second largest), and "
      "smallest_gap_at the token's number. Below 1e-4 in fp32, another number of ranks, another "
      "batch or another device may choose another token");
  verb.footer(
      examples({"trestle generate runs/gpt_characters --prompt \"ROMEO.\" --tokens 200",
                "trestle generate smollm.gguf --chat",
                "trestle generate smollm.gguf --prompt \"The capital of France is\" --greedy "
                "--tokens 8 --json",
                "trestle generate smollm --mesh tensor=3 --prompt \"The capital of France is\"",
                "trestle generate gpt2 --ids 464,3139 --tokens 16"}) +
      exit_codes());
  verb.action([verb, arguments, &words] {
    const auto check = [&] {
      if (arguments->chat)
        refuse_without_effect(verb, {"--ids", "--prompts", "--batch"}, "with --chat");
      else
        refuse_without_effect(verb, {"--chat-template", "--today"}, "without --chat");
      if (!arguments->ids.empty())
        refuse_without_effect(verb, {"--prompt", "--prompts", "--batch"}, "with --ids");
      read_choice(*arguments);
    };
    return perform_generate(*arguments, check, words);
  });
}

}  // namespace trestle::cli
