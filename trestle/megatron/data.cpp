#include <algorithm>
#include <charconv>
#include <numeric>

#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

namespace {

// The folder of token files for Megatron-LM's prefix: data/plays for /texts/plays_text_document,
// and data/tokens for a variable of the shell, whose value is not here.
std::string token_folder(Reading& reading) {
  const std::vector<std::string> paths = reading.words("--data-path");
  if (paths.size() > 1)
    reading.problem(text("--data-path names ", paths.size(),
                         " texts or weights: a run trains on one prepared text. `trestle text "
                         "prepare` takes several sources"));
  std::string name = paths.empty() ? "" : paths[0].substr(paths[0].find_last_of('/') + 1);
  for (const std::string_view end : {"_document", "_sentence", "_text", "_content"})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  const std::string path = paths.empty() ? "" : paths[0];
  if (path.empty() || path.find('$') != std::string::npos) return "data/tokens";
  const bool is_plain = !name.empty() && name[0] != '.' && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
  });
  if (!is_plain)
    reading.problem(text("--data-path '", on_one_line(path),
                         "': the folder data/NAME of the text "
                         "takes its name from the path's last part, which must be letters, digits, "
                         "_, - and ., and not begin with a point"));
  return "data/" + name;
}

// Three numbers such as 949,50,1: training, validation, test.
double validation_share(Reading& reading) {
  constexpr const char* usual = "969,30,1";  // with a warning, in Megatron-LM too
  const std::string given = reading.word_or("--split", usual);
  std::vector<double> shares;
  for (const std::string& word : split(given, ',')) {
    const std::string digits = trim(word);
    double share = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), share);
    if (error != std::errc() || end != digits.data() + digits.size() ||
        !(share >= 0 && share < 1e9))
      share = -1;
    shares.push_back(share);
  }
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (std::ranges::find(shares, -1.0) != shares.end() || shares.size() > 3 || all <= 0) {
    reading.problem(text("--split must be up to three numbers such as 949,50,1, not '",
                         on_one_line(given), "'"));
    return 0;
  }
  return shares.size() < 2 ? 0 : shares[1] / all;
}

// The value of --tokenizer of `trestle text prepare`.
std::string tokenizer_files(Reading& reading) {
  const std::string type = reading.word_or("--tokenizer-type", "GPT2BPETokenizer");
  if (type == "GPT2BPETokenizer") {
    for (const char* file : {"--vocab-file", "--merge-file"}) reading.word_or(file, "");
    return "FOLDER";  // of both files
  }
  if (type == "HuggingFaceTokenizer" || type == "SentencePieceTokenizer" ||
      type == "GPTSentencePieceTokenizer" || type == "Llama2Tokenizer") {
    const std::string model = reading.word_or("--tokenizer-model", "");
    return model.empty() ? "TOKENIZER" : shell_word(on_one_line(model));
  }
  reading.problem(text("--tokenizer-type '", on_one_line(type),
                       "': trestle reads GPT2BPETokenizer, HuggingFaceTokenizer, "
                       "SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer"));
  return "TOKENIZER";
}

}  // namespace

void explain_text(Reading& reading, RecipeText& out) {
  const std::string tokenizer = tokenizer_files(reading);
  const double validation = validation_share(reading);
  out.comment(
      "Megatron-LM's .bin and .idx files are not read. This command prepares the text once:");
  out.comment(text("  trestle text prepare TEXT --tokenizer ", tokenizer, " --validation ",
                   validation, " --out ", token_folder(reading)));
  if (tokenizer == "FOLDER")
    out.comment("FOLDER has vocab.json and merges.txt: those of --vocab-file and --merge-file.");
}

void map_data(Reading& reading, const Sizes& sizes, RecipeText& out) {
  out.begin("data");
  out.set("name", std::string("tokens"), "");
  out.set("tokens", token_folder(reading), "--data-path");
  out.set("row_tokens", sizes.sequence, "--seq-length");
  out.set("order", std::string("random"), "rows at random places of the text");
  out.set("count", sizes.steps_per_epoch * sizes.batch,
          text("an epoch is ", reading.source("--eval-interval"), " = ", sizes.steps_per_epoch,
               " steps"));
  // 0 windows are the whole text.
  const std::int64_t evaluations = reading.integer_or("--eval-iters", 100, {0, 1'000'000});
  out.set("validation_windows", evaluations == 0 ? 1 : evaluations * sizes.batch,
          evaluations == 0 ? "--eval-iters 0: one row, because a run always validates"
                           : reading.source("--eval-iters") + " x batch");
  if (const auto threads = reading.integer("--num-workers", {0, 256}))
    out.set("workers", std::max<std::int64_t>(*threads, 1), "--num-workers");
}

}  // namespace trestle::megatron
