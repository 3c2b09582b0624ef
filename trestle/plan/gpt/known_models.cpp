#include "trestle/plan/gpt/known_models.h"

#include "trestle/base/choose.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

GptModel gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t sequence,
             std::int64_t vocabulary) {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .sequence = sequence,
          .vocabulary = vocabulary};
}

struct LlamaSizes {
  std::int64_t layers, hidden, heads, kv_heads, feed_forward, sequence, vocabulary;
  bool tied = false;
};

GptModel llama(const LlamaSizes& sizes) {
  return {.layers = sizes.layers,
          .hidden = sizes.hidden,
          .heads = sizes.heads,
          .sequence = sizes.sequence,
          .vocabulary = sizes.vocabulary,
          .tied_head = sizes.tied,
          .family = GptModel::Family::Llama,
          .kv_heads = sizes.kv_heads,
          .feed_forward = sizes.feed_forward,
          .flash = true};
}

constexpr std::string_view radford = "Radford et al. 2019, and the published config.json";
constexpr std::string_view touvron = "Touvron et al. 2023 (Llama 2), and the published config.json";
constexpr std::string_view grattafiori =
    "Grattafiori et al. 2024 (Llama 3), table 3, and the published config.json";
constexpr std::string_view llama_32 = "the published config.json of Llama 3.2";

}  // namespace

const std::vector<KnownModel>& known_models() {
  static const std::vector<KnownModel> models = {
      {"gpt2", gpt(12, 768, 12, 1024, 50257), radford},
      {"gpt2-medium", gpt(24, 1024, 16, 1024, 50257), radford},
      {"gpt2-large", gpt(36, 1280, 20, 1024, 50257), radford},
      {"gpt2-xl", gpt(48, 1600, 25, 1024, 50257), radford},
      {"gpt-3-175b", gpt(96, 12288, 96, 2048, 50257), "Brown et al. 2020, table 2.1"},
      {"mt-nlg-530b", gpt(105, 20480, 128, 2048, 51200),
       "Smith et al. 2022; the vocabulary is padded as in Narayanan et al. 2021"},
      {"megatron-1t", gpt(128, 25600, 160, 2048, 51200), "Narayanan et al. 2021, table 1"},
      {"llama-2-7b", llama({32, 4096, 32, 32, 11008, 4096, 32000}), touvron},
      {"llama-2-13b", llama({40, 5120, 40, 40, 13824, 4096, 32000}), touvron},
      {"llama-2-70b", llama({80, 8192, 64, 8, 28672, 4096, 32000}), touvron},
      {"llama-3-8b", llama({32, 4096, 32, 8, 14336, 8192, 128256}), grattafiori},
      {"llama-3-70b", llama({80, 8192, 64, 8, 28672, 8192, 128256}), grattafiori},
      {"llama-3.1-405b", llama({126, 16384, 128, 8, 53248, 8192, 128256}), grattafiori},
      {"llama-3.2-1b", llama({16, 2048, 32, 8, 8192, 8192, 128256, true}), llama_32},
      {"llama-3.2-3b", llama({28, 3072, 24, 8, 8192, 8192, 128256, true}), llama_32},
      {"mistral-7b", llama({32, 4096, 32, 8, 14336, 8192, 32000}),
       "Jiang et al. 2023, table 1; attention to all 8,192 tokens, without its window"}};
  return models;
}

GptModel parse_known_model(std::string_view words) {
  const std::size_t comma = words.find(',');
  const GptModel model = choose("model", trim(words.substr(0, comma)), known_models()).sizes;
  return comma == std::string_view::npos ? model
                                         : with_sizes(model, words.substr(comma + 1), "--model");
}

std::string_view name_of(const GptModel& model) {
  for (const KnownModel& known : known_models())
    if (known.sizes == model) return known.name;
  return {};
}

}  // namespace trestle::plan
