#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <functional>
#include <memory>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/generate_arguments.h"
#include "trestle/cli/interrupt.h"
#include "trestle/cli/lost_pages.h"
#include "trestle/cli/mesh_flags.h"
#include "trestle/cli/text_ranks.h"
#include "trestle/cli/text_session.h"
#include "trestle/cli/verbs.h"
#include "trestle/comm/world.h"
#include "trestle/device/device.h"
#include "trestle/device/spin_guard.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/mesh_options.h"
#include "trestle/train/run_ranks.h"

namespace trestle::cli {

namespace {

double number_of(const std::string& flag, const std::string& word) {
  double value = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (problem != std::errc() || end != word.data() + word.size())
    throw UsageError(text(flag, " must be a number, not '", word, "'"));
  return value;
}

// The one device of a rank, or those over which one process divides the blocks.
std::vector<Device> devices_of(const GenerateArguments& arguments, const train::RunRanks& ranks) {
  if (arguments.devices.empty()) return {};
  std::vector<Device> all;
  ranks.in_turn([&] { all = parse_devices(arguments.devices); });
  return train::devices_of_rank(all, ranks);
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

int generate_on_rank(const GenerateArguments& arguments, const World* world) {
  train::RunRanks ranks(world);
  recipe::Recipe::Mesh mesh;
  mesh.tensor = ranks.size();
  ranks.lay_out(mesh);
  const bool processes = !ranks.alone() && world->backend() != "threads";
  if (processes && ranks.reports()) refuse_terminal_of_processes(arguments);
  train::TextModelOptions options = options_of(arguments);
  options.tensor = ranks.tensor();
  options.devices = devices_of(arguments, ranks);
  report_lost_pages();
  const SpinGuard guard;
  const TextRanks texts(ranks.group());
  TextSession session(arguments, train::open_text_model(arguments.model, options), texts);
  if (ranks.reports()) {
    stop_on_interrupt("\ntrestle: the text ends here; a second signal ends the program\n");
    session.write_all();
    texts.end();
  } else if (processes) {
    session.follow({.stop = interrupted,
                    .begins = [] { stop_on_interrupt(""); },  // rank 0 prints the message
                    .waits = watch_interrupts});
  } else {  // rank 0 gets the signals of threads
    session.follow({});
  }
  return code_of_signals(ranks.alone() ? nullptr : world);
}

// The number of ranks that --mesh lays out.
int ranks_of_mesh(const GenerateArguments& arguments) {
  if (arguments.mesh.empty()) return 1;
  recipe::Recipe recipe;
  for (const auto& [name, value] : changes_of_mesh(arguments.mesh))
    recipe::set_field(recipe, name, value);
  const int ranks = ranks_of(recipe.mesh), asked = asked_ranks(arguments.ranks);
  if (ranks != recipe.mesh.tensor)
    throw UsageError(text("--mesh ", arguments.mesh, ": ranks write text as tensor ranks alone"),
                     {.hint = "Write for example --mesh tensor=2."});
  if (asked != 0 && asked != ranks)
    throw UsageError(
        text("--mesh ", arguments.mesh, " lays out ", counted(ranks, "rank"), ", but there ",
             plural(asked, "is ", "are "), asked),
        {.hint = "All ranks split the layers: give their number, or leave --mesh out."});
  return ranks;
}

int perform_generate(GenerateArguments& arguments, const std::function<void()>& check,
                     const std::vector<std::string>& words) {
  RankOptions& ranks = arguments.ranks;
  ranks.words = words;
  ranks.check = [&](int count) {
    train::check_text_model(arguments.model, options_of(arguments), count);
    // Only a machine with GPUs knows the number of cuda:all.
    if (!arguments.devices.empty() && arguments.devices != "cuda:all")
      train::check_device_count(std::ssize(planned_devices(arguments.devices)), count);
    if (!ranks.ranks.starts_with("threads")) refuse_terminal_of_processes(arguments);
  };
  try {
    check();
    ranks.default_ranks = ranks_of_mesh(arguments);
  } catch (const UsageError& error) {  // the same on all ranks of a launcher
    tell_other_machines(error);
    if (another_rank_complains()) return usage_error;
    throw;
  }
  return on_ranks(ranks, [&](const World* world) { return generate_on_rank(arguments, world); });
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
           "cpu, virtual:2x512MiB, cuda:0,cuda:1: the blocks are divided over them (default: cpu). "
           "With several ranks one for each, or one for all")
      .type("DEVICES");
  verb.add("--mesh", arguments->mesh,
           "tensor=2: two ranks, which split each layer (docs/tensor_parallel.md). This many "
           "processes are started; under torchrun, srun or trestle launch all ranks split the "
           "layers, also without --mesh")
      .type("tensor=N");
  verb.add("--ranks", arguments->ranks.ranks,
           "The number of these ranks: 2 (processes) or threads:2. --chat on a terminal takes "
           "threads")
      .type("N");
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
