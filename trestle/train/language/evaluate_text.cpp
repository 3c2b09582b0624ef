#include "trestle/train/language/evaluate_text.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/generate/write_text.h"

namespace trestle::train {

double TextScore::loss() const { return -log_probability / static_cast<double>(tokens); }
double TextScore::perplexity() const { return std::exp(loss()); }
double TextScore::bits_per_byte() const {
  return -log_probability / (static_cast<double>(bytes) * std::numbers::ln2);
}

TextScore evaluate_text(const generate::LanguageModel& model, const tokens::Tokenizer& tokenizer,
                        std::string_view words, const TextEvaluateOptions& options) {
  const std::int64_t context = model.config().context;
  TextScore score{.window = options.window > 0 ? options.window : context};
  score.stride = options.stride > 0 ? options.stride : std::max<std::int64_t>(score.window / 2, 1);
  if (options.window < 0 || score.window > context)
    throw UsageError(text("a window of ", counted(options.window, "token"),
                          " is not from 1 to the model's context of ", context));
  if (options.stride < 0 || score.stride > score.window)
    throw UsageError(text("a stride of ", counted(options.stride, "token"),
                          " is not from 1 to the window of ", score.window));
  const std::vector<std::int64_t> ids = generate::prompt_ids(tokenizer, words);
  const std::int64_t count = std::ssize(ids);
  if (count < 2)
    throw UsageError(text("the text has ", counted(count, "token"),
                          ", and at least 2 are needed to predict one from another"));
  score.tokens = count - 1;
  score.bytes = std::ssize(words);
  if (tokenizer.prefix().empty())
    score.bytes -= std::ssize(tokenizer.bytes(static_cast<tokens::Id>(ids.front())));
  // Windows of equal length are one batch.
  constexpr std::int64_t most_tokens = 4096;
  const std::int64_t batch = std::max<std::int64_t>(most_tokens / score.window, 1);
  std::vector<generate::LanguageModel::Continuation> windows;
  const auto run = [&] {
    for (const auto& row : model.log_probabilities(windows))
      for (const double one : row) score.log_probability += one;
    windows.clear();
  };
  std::int64_t scored = 1;  // ids before this one need no score
  for (std::int64_t begin = 0; scored < count; begin += score.stride) {
    const std::int64_t end = std::min(begin + score.window + 1, count);
    windows.push_back({{ids.begin() + begin, ids.begin() + end}, scored - begin});
    scored = end;
    ++score.windows;
    if (std::ssize(windows) < batch && scored < count) continue;
    run();
    if (options.progress) options.progress(scored - 1, score.tokens);
  }
  return score;
}

}  // namespace trestle::train
