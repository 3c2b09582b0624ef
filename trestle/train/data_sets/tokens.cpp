#include "trestle/tokens/files/token_rows.h"

#include <ATen/ops/empty.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/language/new_tokens.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

namespace {

// Rows of a text: inputs int64 [context], or [context, 2] with the tokens' places, and targets
// int64 [context].
class TokenDataset : public data::Dataset {
 public:
  explicit TokenDataset(tokens::TokenRows rows) : rows_(std::move(rows)) {}

  std::int64_t size() const override { return rows_.count(); }
  std::uint64_t content_hash() const override { return rows_.set().content_hash(); }
  data::Sample get(std::int64_t index) const override { return draw(index, data::Part::Both, 0); }

  data::Sample draw(std::int64_t index, data::Part, std::uint64_t key) const override {
    const std::int64_t context = rows_.options().context;
    const auto count = static_cast<std::size_t>(context);
    at::Tensor ids = at::empty({context}, at::kLong), targets = at::empty({context}, at::kLong);
    at::Tensor places = at::empty({rows_.has_places() ? context : 0}, at::kLong);
    const auto span = [](at::Tensor& tensor) {
      return std::span(tensor.mutable_data_ptr<std::int64_t>(),
                       static_cast<std::size_t>(tensor.numel()));
    };
    rows_.read(index, key, {.ids = span(ids), .targets = span(targets), .places = span(places)});
    if (!rows_.has_places()) return {ids, targets, text("row ", index)};
    at::Tensor placed = at::empty({context, 2}, at::kLong);
    auto* const pairs = placed.mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < count; ++i) {
      pairs[2 * i] = span(ids)[i];
      pairs[2 * i + 1] = span(places)[i];
    }
    return {placed, targets, text("row ", index)};
  }

 private:
  tokens::TokenRows rows_;
};

bool has_validation(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".bin" && entry.path().filename().string().starts_with("val"))
      return true;
  return false;
}

std::int64_t row_tokens(const recipe::Recipe& recipe, const models::TransformerConfig& config) {
  const std::int64_t tokens = recipe.data.row_tokens;
  if (tokens > config.context)
    throw UsageError(text("row_tokens = ", tokens,
                          " in [data] is more than the model's context of ", config.context));
  return tokens > 0 ? tokens : config.context;
}

// The tokenizer in the text's folder is the one that wrote the text.
void check_own_tokenizer(const tokens::TokenSet& set, const std::string& folder) {
  const std::filesystem::path own = std::filesystem::path(folder) / "tokenizer";
  if (!set.tokenizer().empty() && std::filesystem::is_directory(own))
    tokens::check_tokenizer(set, tokens::open_saved_tokenizer(own)->hash(), own.string());
}

Examples rows_of(const recipe::Recipe& recipe, const models::TransformerConfig& config,
                 const std::string& split) {
  const bool training = split == "train";
  tokens::TokenRowsOptions options{.order = tokens::parse_row_order(recipe.data.order),
                                   .context = row_tokens(recipe, config),
                                   .vocabulary = config.vocabulary,
                                   .count = recipe.data.count,
                                   .seed = static_cast<std::uint64_t>(recipe.train.seed)};
  // The validation is the same in each epoch.
  if (!training && options.order == tokens::RowOrder::Random)
    options.order = tokens::RowOrder::Windows;
  if (!training || options.order != tokens::RowOrder::Random) options.count = 0;
  if (!training && options.order == tokens::RowOrder::Windows)
    options.count = recipe.data.validation_windows;
  return all_of(std::make_shared<TokenDataset>(
      tokens::TokenRows(std::make_shared<tokens::TokenSet>(recipe.data.tokens, split), options)));
}

OpenedData open_tokens(const recipe::Recipe& recipe) {
  if (!is_transformer(recipe))
    throw UsageError(text("the data set 'tokens' is for the models gpt2 and llama, not '",
                          recipe.model.name, "'"));
  const models::TransformerConfig config = transformer_config(recipe);
  const tokens::TokenSet set(recipe.data.tokens);
  check_own_tokenizer(set, recipe.data.tokens);
  check_text_of_weights(recipe, set);
  if (set.vocabulary() > config.vocabulary)
    throw UsageError(
        text("the tokenizer of the text has ", set.vocabulary(), " tokens, and the model ",
             config.vocabulary),
        {.file = recipe.data.tokens,
         .hint = text("vocabulary = ", set.vocabulary(), " in [transformer] gives the model more; ",
                      "the rows of new tokens begin as the mean of the rows in 'weights'. Or "
                      "prepare the text with the model's tokenizer.")});
  OpenedData opened;
  opened.training = rows_of(recipe, config, "train");
  if (has_validation(recipe.data.tokens)) opened.validation = rows_of(recipe, config, "validation");
  opened.notes.push_back(text("text      ", counted(set.count(), "token"), " in ",
                              counted(set.documents(), "document"), " of ",
                              set.vocabulary() > 0 ? text(set.vocabulary(), " known ones") : "ids",
                              " · rows of ", row_tokens(recipe, config)));
  return opened;
}

// `trestle data check`: the checksums of the files, and every row.
data::CheckReport check_tokens(const recipe::Recipe& recipe, const data::CheckProgress& progress) {
  data::CheckReport report;
  const auto collect = [&](const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  };
  std::optional<tokens::TokenSet> set;
  collect([&] { set.emplace(recipe.data.tokens).check_content(); });
  if (has_validation(recipe.data.tokens))
    collect([&] { tokens::TokenSet(recipe.data.tokens, "validation").check_content(); });
  if (!report.ok()) return report;
  const std::string tokens = counted(set->count(), "token") + " for training";
  report.notes.push_back(set->has_checksums()
                             ? text("checksums of ", tokens, " are right")
                             : text(tokens,
                                    " have no checksums: a .json file is missing, or "
                                    "another program wrote them"));
  if (is_transformer(recipe)) {  // opening and reading the rows checks the tokenizer too
    collect([&] { check_opened(recipe, open_tokens(recipe), report, progress); });
  } else {
    report.count = set->documents();
    collect([&] { check_own_tokenizer(*set, recipe.data.tokens); });
  }
  return report;
}

// The ids of another tokenizer than the run's mean other words.
void check_tokenizer_of_run(const recipe::Recipe& recipe, const std::filesystem::path& weights) {
  std::filesystem::path folder = std::filesystem::absolute(weights);
  constexpr int most_levels = 3;  // RUN/last, RUN/checkpoints/step_10
  for (int level = 0; level < most_levels; ++level) {
    folder = folder.parent_path();
    if (!std::filesystem::is_directory(folder / "tokenizer")) continue;
    const auto own = tokens::open_saved_tokenizer(folder / "tokenizer");
    return tokens::check_tokenizer(tokens::TokenSet(recipe.data.tokens), own->hash(),
                                   recipe.data.tokens);
  }
}

}  // namespace

// Text as token files.
DataSet tokens_set() {
  return {.name = "tokens",
          .summary = "text as token files, from `trestle text prepare`: for gpt2 and llama",
          .loss = "token_cross_entropy",
          .metric = "log_probability",
          .predicts = Predicts::Token,
          .paths = {"tokens"},
          .keys = {"order", "count", "row_tokens", "validation_windows"},
          .usual_input =
              [](const recipe::Recipe& recipe) {
                return std::vector<std::int64_t>{row_tokens(recipe, transformer_config(recipe))};
              },
          .open = open_tokens,
          .check = check_tokens,
          .check_weights = check_tokenizer_of_run};
}

}  // namespace trestle::train
