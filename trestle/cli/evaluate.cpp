#include "trestle/train/predict/evaluator.h"

#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/base/utf8.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/lost_pages.h"
#include "trestle/cli/model_ranks.h"
#include "trestle/cli/verbs.h"
#include "trestle/comm/gather.h"
#include "trestle/device/spin_guard.h"
#include "trestle/train/language/evaluate_choices.h"
#include "trestle/train/language/evaluate_text.h"
#include "trestle/train/language/text_model.h"
#include "trestle/train/progress/bar.h"

namespace trestle::cli {

namespace {

struct EvaluateArguments {
  train::EvaluateOptions options;
  FieldChanges changes;
  bool json = false;
  // For language models.
  ModelRanks on;
  std::filesystem::path text, choices, tokenizer, adapter;
  std::int64_t window = 0, stride = 0;
  std::optional<std::string> separator;
};

// The fields that may differ from the run's.
const std::vector<std::string> fields = {
    "data.images",         "data.masks",       "data.folder",       "data.input_array",
    "data.target_array",   "data.mask_suffix", "data.mask_values",  "data.mask_ignore",
    "data.tokens",         "data.order",       "data.row_tokens",   "data.validation_windows",
    "data.scale",          "data.image_width", "data.image_height", "data.workers",
    "devices.use",         "devices.threads",  "pipeline.balance",  "pipeline.micro_batches",
    "pipeline.split_size", "train.batch",      "train.precision",   "train.loss",
    "train.metric"};

void print_evaluation(const train::EvaluateResult& result) {
  std::cout << "weights   " << result.weights.string();
  if (result.epoch > 0) std::cout << " · epoch " << result.epoch << ", step " << result.step;
  std::cout << "\ndata      " << counted(result.examples, "example");
  if (!result.data.empty()) std::cout << " of " << join(result.data, ", ");
  std::cout << (result.others ? "" : ", the run's own for validation")
            << (result.synthetic_data ? ", synthetic\n" : "\n");
  std::cout << "loss      " << result.validation_loss << "\n"
            << result.metric_name
            << std::string(std::max<std::size_t>(10, result.metric_name.size() + 1) -
                               result.metric_name.size(),
                           ' ')
            << result.metric << "\n";
  if (result.metric_name == "log_probability")
    std::cout << "perplexity " << std::exp(-result.metric) << "\n";
  std::cout << "done      in " << format_duration(result.seconds) << std::endl;
}

int perform_evaluate(const EvaluateArguments& arguments, const RunOptions& options) {
  // A copy: its progress bar is destroyed, and so erased, before an error is printed.
  train::EvaluateOptions wanted = arguments.options;
  wanted.changes = arguments.changes;
  wanted.models = options.models;
  wanted.user_parts = user_parts_of(options);
  if (!arguments.json) wanted.progress = train::count_bar("evaluated");
  const train::EvaluateResult result = train::evaluate(wanted);
  if (arguments.json)
    std::cout << to_json(result) << std::endl;
  else
    print_evaluation(result);
  return 0;
}

struct OpenedModel {
  train::TextModel model;
  generate::LanguageModel reader;
};

// The model for --text and --choices: the devices and the type that the fields' flags name.
void set_model(const EvaluateArguments& arguments, const char* flag, ModelRanks& on) {
  on.model = arguments.options.run;
  on.options = {.checkpoint = arguments.options.checkpoint,
                .tokenizer = arguments.tokenizer,
                .adapters = arguments.adapter};
  for (const auto& [name, value] : arguments.changes) {
    if (name == "devices.use") {
      on.devices = value;
    } else if (name == "train.precision") {
      on.options.type = train::parse_weights_type(value, "--precision");
    } else {
      throw UsageError(text("a flag for '", name, "' has no effect with ", flag),
                       {.hint = "Leave it out. --devices and --precision have an effect."});
    }
  }
}

OpenedModel open_model(const ModelRanks& on, const ModelRank& rank) {
  report_lost_pages();
  train::TextModel model = train::open_text_model(on.model, rank.options);
  if (!model.tokenizer)
    throw UsageError(text(on.model.string(), ": has no tokenizer"),
                     {.hint = "Name one with --tokenizer."});
  generate::LanguageModel reader(model.layers, model.config);
  return {std::move(model), std::move(reader)};
}

// Whether this rank shows the progress and prints the result.
bool prints_bar(const EvaluateArguments& arguments, const ModelRank& rank) {
  return rank.ranks.reports() && !arguments.json;
}

// The file's text, which rank 0 reads and sends to the other ranks.
std::string text_on_rank(const EvaluateArguments& arguments, const ModelRank& rank) {
  if (!rank.ranks.reports()) return rank.ranks.from_first({});
  const std::string content = read_file(arguments.text);
  const std::string_view words = without_byte_order_mark(content, arguments.text.string());
  if (!is_utf8(words))
    std::cerr << "trestle: " << arguments.text.string()
              << " has bytes that are not UTF-8; each counts as the character U+FFFD\n";
  return rank.ranks.from_first(std::string(words));
}

// The questions, in the same way.
std::vector<train::Question> questions_on_rank(const EvaluateArguments& arguments,
                                               const ModelRank& rank) {
  using Message =
      std::vector<std::tuple<std::string, std::vector<std::string>, std::int64_t, std::string>>;
  std::vector<train::Question> questions;
  if (rank.ranks.reports()) questions = train::read_questions(arguments.choices);
  if (rank.ranks.alone()) return questions;
  Message message;
  for (const train::Question& one : questions)
    message.emplace_back(one.prompt, one.choices, one.answer, one.place);
  questions.clear();
  for (auto& [prompt, choices, answer, place] :
       comm::broadcast_value(rank.ranks.group(), message, 0))
    questions.push_back({std::move(prompt), std::move(choices), answer, std::move(place)});
  return questions;
}

int evaluate_text(const EvaluateArguments& arguments, const ModelRank& rank) {
  const SpinGuard guard;
  const std::string words = text_on_rank(arguments, rank);
  const OpenedModel opened = open_model(arguments.on, rank);
  const Stopwatch watch;
  train::TextScore score;
  try {
    train::TextEvaluateOptions options{.window = arguments.window, .stride = arguments.stride};
    if (prints_bar(arguments, rank)) options.progress = train::count_bar("evaluated");
    score = train::evaluate_text(opened.reader, *opened.model.tokenizer, words, options);
  } catch (Error& error) {
    error.add_context(text("in ", arguments.text.string()));
    throw;
  }
  if (!rank.ranks.reports()) return 0;
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"weights", opened.model.weights.string()},
                                        {"text", arguments.text.string()},
                                        {"tokens", score.tokens},
                                        {"bytes", score.bytes},
                                        {"window", score.window},
                                        {"stride", score.stride},
                                        {"loss", score.loss()},
                                        {"perplexity", score.perplexity()},
                                        {"bits_per_byte", score.bits_per_byte()},
                                        {"seconds", watch.seconds()}}
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
    return 0;
  }
  std::cout << "weights       " << opened.model.weights.string() << "\ntext          "
            << arguments.text.string() << ": " << counted(score.tokens, "token") << ", "
            << counted(score.bytes, "byte") << "\nwindows       " << score.windows << " of up to "
            << counted(score.window, "token") << ", stride " << score.stride << "\nloss          "
            << score.loss() << "\nperplexity    " << score.perplexity() << "\nbits per byte "
            << score.bits_per_byte() << "\ndone          in " << format_duration(watch.seconds())
            << std::endl;
  return 0;
}

int evaluate_choices(const EvaluateArguments& arguments, const ModelRank& rank) {
  const SpinGuard guard;
  const std::vector<train::Question> questions = questions_on_rank(arguments, rank);
  const OpenedModel opened = open_model(arguments.on, rank);
  const Stopwatch watch;
  train::ChoicesResult result;
  {
    train::ChoicesOptions options;
    if (arguments.separator) options.separator = *arguments.separator;
    if (prints_bar(arguments, rank)) options.progress = train::count_bar("evaluated");
    result = train::evaluate_choices(opened.reader, *opened.model.tokenizer, questions, options);
  }
  if (!rank.ranks.reports()) return 0;
  const double share = result.accuracy(), normalised = result.normalised_accuracy();
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"weights", opened.model.weights.string()},
                                        {"choices", arguments.choices.string()},
                                        {"questions", result.questions.size()},
                                        {"acc", share},
                                        {"acc_stderr", result.standard_error(share)},
                                        {"acc_norm", normalised},
                                        {"acc_norm_stderr", result.standard_error(normalised)},
                                        {"cut", result.cut},
                                        {"seconds", watch.seconds()}}
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
    return 0;
  }
  std::cout << "weights   " << opened.model.weights.string() << "\nquestions "
            << result.questions.size() << " of " << arguments.choices.string();
  if (result.cut > 0)
    std::cout << "\ncut       the prompts of " << counted(result.cut, "choice")
              << " lost their begin to fit the context of " << opened.model.config.context;
  std::cout << "\nacc       " << share << " (" << result.right << " right, standard error "
            << result.standard_error(share) << ")\nacc_norm  " << normalised << " ("
            << result.right_normalised << " right, standard error "
            << result.standard_error(normalised) << ")\ndone      in "
            << format_duration(watch.seconds()) << std::endl;
  return 0;
}

// On one process, or with --text and --choices on tensor ranks.
int evaluate_on_ranks(const Verb& verb, EvaluateArguments& arguments, const RunOptions& options,
                      const std::vector<std::string>& words) {
  const bool has_text = !arguments.text.empty(), has_choices = !arguments.choices.empty();
  const auto check_flags = [&] {
    if (!has_text) refuse_without_effect(verb, {"--window", "--stride"}, "without --text");
    if (!has_choices) refuse_without_effect(verb, {"--separator"}, "without --choices");
  };
  if (!has_text && !has_choices) {
    const bool valid = is_valid_on_all_ranks([&] {
      refuse_on_ranks("evaluate without --text or --choices");
      check_flags();
      refuse_without_effect(verb, {"--tokenizer", "--adapter", "--mesh", "--ranks", "--deadline"},
                            "without --text or --choices");
      refuse_checkpoint_of_file(verb, arguments.options.run);
    });
    if (!valid) return usage_error;
    const SpinGuard guard;
    return perform_evaluate(arguments, options);
  }
  arguments.on.ranks.words = words;
  arguments.on.ranks.files = {arguments.text, arguments.choices};
  const auto prepare = [&] {
    check_flags();
    need_file(has_text ? arguments.text : arguments.choices, has_text ? "--text" : "--choices");
    set_model(arguments, has_text ? "--text" : "--choices", arguments.on);
  };
  return on_model_ranks(arguments.on, prepare, [&](const ModelRank& rank) {
    return has_text ? evaluate_text(arguments, rank) : evaluate_choices(arguments, rank);
  });
}

}  // namespace

void add_evaluate(Verb app, const RunOptions& options, const std::vector<std::string>& words) {
  Verb verb = app.add_verb("evaluate",
                           "Compute loss and metric of a run's weights, on its validation data or "
                           "other data; or how well "
                           "a language model predicts a text and answers questions");
  auto arguments = std::make_shared<EvaluateArguments>();
  verb.add(
          "run", arguments->options.run,
          "A run folder, or a .safetensors file in one; with --text and --choices also a folder of "
          "Hugging Face or a GGUF file")
      .required()
      .type("RUN_FOLDER");
  add_checkpoint_flag(verb, arguments->options.checkpoint);
  verb.add_switch("--json", arguments->json, "Print one JSON object");
  verb.add("--text", arguments->text,
           "A text file: print the perplexity of a language model on it, and bits per byte")
      .type("FILE");
  verb.add("--choices", arguments->choices,
           "A .jsonl file of questions: print the share of right answers. Each line is such as "
           "{\"prompt\": \"Grass is\", \"choices\": [\"green\", \"loud\"], \"answer\": 0}")
      .excludes("--text")
      .type("FILE");
  verb.add_number(
          "--window", {1, 1'000'000'000}, [arguments](std::int64_t n) { arguments->window = n; },
          "With --text: a token is predicted from at most N tokens (default: the model's context)")
      .type("N");
  verb.add_number(
          "--stride", {1, 1'000'000'000}, [arguments](std::int64_t n) { arguments->stride = n; },
          "With --text: tokens from one window to the next (default: half of the window)")
      .type("N");
  verb.add("--separator", arguments->separator,
           "With --choices: the text between a prompt and a choice, which may be empty (default: "
           "one "
           "space)")
      .may_be_empty()
      .type("TEXT");
  verb.add("--tokenizer", arguments->tokenizer,
           "With --text and --choices: another tokenizer than the model's")
      .type("FILE");
  add_adapter_option(verb, arguments->adapter);
  add_model_rank_flags(verb, arguments->on, ". With --text and --choices");
  add_field_flags(verb, arguments->changes, options, fields);
  verb.footer(
      examples({"trestle evaluate runs/unet_quick",
                "trestle evaluate runs/unet_quick --checkpoint last --devices cpu --json",
                "trestle evaluate runs/unet_quick --images other/photos --masks other/masks",
                "trestle evaluate runs/resnet18_mnist --folder data/mnist",
                "trestle evaluate runs/gpt_characters --text play.txt --stride 32",
                "trestle evaluate smollm.gguf --choices questions.jsonl --json",
                "trestle evaluate smollm --text play.txt --mesh tensor=3"}) +
      "With --text and --choices, --devices and --precision (fp32, bf16 or int8) have an effect.\n"
      "Without data flags it uses the run's validation examples, and gives the numbers of its "
      "metrics.jsonl.\n"
      "With other data it uses the validation split if there is one, else every example.\n"
      "Perplexity is exp(-(log p(t1) + ... + log p(tn)) / n) over the n tokens of a text. Each is\n"
      "scored once, from the tokens before it in its window: window k predicts from the tokens\n"
      "k stride to k stride + window - 1, and scores those that no window before it has scored.\n"
      "Bits per byte are -(log2 p(t1) + ... + log2 p(tn)) / bytes.\n"
      "A choice's score is the sum of the log-probabilities of its tokens behind the prompt; the\n"
      "answer (acc) is the choice with the largest, or with the largest per byte (acc_norm).\n" +
      exit_codes());
  verb.action([verb, arguments, &options, &words] {
    return evaluate_on_ranks(verb, *arguments, options, words);
  });
}

}  // namespace trestle::cli
