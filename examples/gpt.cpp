// Trains a small GPT on the bytes of a text, and prints what it writes. Any text file may be given.
#include <trestle/trestle.h>

#include <iostream>

#include "trestle/generate/write_text.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/tokens/files/prepare.h"
#include "trestle/tokens/files/token_rows.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"

int main(int count, char** arguments) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "trestle_gpt_example";
  std::string file = folder.string() + ".txt";
  if (count > 1) file = arguments[1];
  if (count == 1) {
    std::string text;
    for (int line = 0; line < 400; ++line) text += "a trestle bridge rests on many supports. ";
    trestle::write_file(file, text);
  }
  // [use]
  const auto tokenizer = trestle::tokens::bytes_tokenizer();
  trestle::tokens::prepare({file}, *tokenizer,
                           {.out = folder, .overwrite = trestle::Overwrite::Allow});
  const trestle::tokens::TokenRows rows(
      std::make_shared<trestle::tokens::TokenSet>(folder),
      {.order = trestle::tokens::RowOrder::Random, .context = 64, .vocabulary = 256, .count = 8});

  trestle::models::TransformerConfig config;  // GPT-2, made smaller
  config.vocabulary = 256;
  config.context = 64;
  config.width = 64;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_size = 16;
  config.mlp = 256;
  trestle::nn::Layers net = trestle::models::transformer(config, {.seed = 1});

  trestle::Pipeline pipeline(net, {.devices = trestle::parse_devices("cpu"), .balance = {5}});
  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(3e-3));
  for (std::uint64_t step = 0; step < 120; ++step) {
    std::vector<std::int64_t> ids(8 * 64), next(8 * 64);
    for (std::size_t row = 0; row < 8; ++row)
      rows.read(static_cast<std::int64_t>(row), 8 * step + row,
                {.ids = std::span(ids).subspan(64 * row, 64),
                 .targets = std::span(next).subspan(64 * row, 64),
                 .places = {}});
    optimizer.zero_grad();
    const auto done =
        pipeline.step(torch::tensor(ids).view({8, 64}), torch::tensor(next).view({8, 64}),
                      trestle::nn::token_cross_entropy());
    optimizer.step();
    if (step % 40 == 39) std::cout << "step " << step + 1 << "  loss " << done.loss << "\n";
  }

  const trestle::generate::LanguageModel model(net, config);
  const auto prompt = trestle::generate::prompt_ids(*tokenizer, "a trestle");
  const auto written =
      trestle::generate::write_text(model, *tokenizer, prompt, {.generate = {.most_tokens = 50}});
  std::cout << "a trestle" << written.text << "\n";
  // [use]
  return count > 1 || written.text.starts_with(" bridge rests on many") ? 0 : 1;
}
