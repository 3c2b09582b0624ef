#include <array>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

namespace {

// Flags are GPT-2's if none of these holds, and Llama's if all of them do.
bool is_llama(Reading& reading) {
  const std::string positions =
      reading.word_or("--position-embedding-type",
                      reading.has("--use-rotary-position-embeddings") ? "rope" : "learned_absolute",
                      {"learned_absolute", "rope"});
  const std::string norm =
      reading.word_or("--normalization", "LayerNorm", {"LayerNorm", "RMSNorm"});
  const std::array choices = {
      std::pair("--position-embedding-type rope", positions == "rope"),
      std::pair("--normalization RMSNorm", norm == "RMSNorm"),
      std::pair("--swiglu", reading.has("--swiglu")),
      std::pair("--disable-bias-linear", reading.has("--disable-bias-linear"))};
  std::vector<std::string> present, missing;
  for (const auto& [flag, holds] : choices) (holds ? present : missing).emplace_back(flag);
  if (!present.empty() && !missing.empty())
    reading.problem(
        text("the model is neither GPT-2 nor Llama, the two styles of trestle: Llama "
             "has ",
             join(present, ", "), ", and also ", join(missing, ", "), "; GPT-2 has none of them"));
  if (positions == "learned_absolute" && reading.has("--no-position-embedding"))
    reading.problem("--no-position-embedding: GPT-2 has learned positions, Llama rotary ones");
  return !present.empty();
}

void map_vocabulary(Reading& reading, const Sizes& sizes, RecipeText& out) {
  constexpr std::int64_t most_rows = 1'048'576;
  constexpr std::int64_t of_gpt2 = 50257;
  const std::string tokenizer = reading.word_or("--tokenizer-type", "GPT2BPETokenizer");
  std::int64_t vocabulary = 1;
  if (const auto given = reading.integer("--vocab-size", {}))
    out.set("vocabulary", vocabulary = *given, "--vocab-size");
  else if (tokenizer == "GPT2BPETokenizer")
    out.set("vocabulary", vocabulary = of_gpt2,
            reading.source("--tokenizer-type") + " GPT2BPETokenizer");
  if (const auto padded = reading.integer("--padded-vocab-size", {1, most_rows})) {
    if (*padded < vocabulary)
      reading.problem(text("--padded-vocab-size ", *padded, " is less than the ", vocabulary,
                           " tokens of the vocabulary"));
    return out.set("vocabulary_multiple", *padded, "--padded-vocab-size");
  }
  if (reading.has("--no-pad-vocab-size")) return;
  const std::int64_t multiple =
      reading.integer_or("--make-vocab-size-divisible-by", 128, {1, most_rows});
  out.set("vocabulary_multiple", multiple * sizes.tensor,
          reading.source("--make-vocab-size-divisible-by") +
              (sizes.tensor > 1 ? text(" x ", sizes.tensor, " tensor ranks") : ""));
}

void map_positions(Reading& reading, const Sizes& sizes, bool llama, RecipeText& out) {
  const std::int64_t context = reading.required("--max-position-embeddings", {});
  if (context < sizes.sequence && reading.has("--max-position-embeddings"))
    reading.problem(
        text("--max-position-embeddings ", context, " is less than --seq-length ", sizes.sequence));
  out.set("context", context, "--max-position-embeddings");
  if (!llama) return;
  reading.has("--no-position-embedding");  // beside rotary positions it says nothing new
  if (const auto base = reading.integer("--rotary-base", {}))
    out.set("rope_theta", static_cast<double>(*base), "--rotary-base");
  if (reading.number_or("--rotary-percent", 1, {0, 1}) != 1)
    reading.problem("--rotary-percent: rotary positions turn whole heads");
}

void map_heads(Reading& reading, const Sizes& sizes, std::int64_t width, bool llama,
               RecipeText& out) {
  out.set("heads", sizes.heads, "--num-attention-heads");
  if (reading.has("--group-query-attention")) {
    const std::int64_t groups = reading.integer_or("--num-query-groups", 1, {});
    if (sizes.heads % groups != 0)
      reading.problem(text("--num-query-groups ", groups, " does not divide --num-attention-heads ",
                           sizes.heads, ", which ", divisors_of(sizes.heads), " divide"));
    if (!llama && groups != sizes.heads)
      reading.problem(text("--group-query-attention with ", groups, " groups of ", sizes.heads,
                           " heads: GPT-2 has a head of keys for each of queries. Llama has fewer: "
                           "--position-embedding-type rope, --normalization RMSNorm, --swiglu, "
                           "--disable-bias-linear"));
    out.set("kv_heads", groups, reading.source("--num-query-groups"));
  }
  if (const auto size = reading.integer("--kv-channels", {1, 1'048'576})) {
    if (!llama && *size * sizes.heads != width)
      reading.problem(text("--kv-channels ", *size, ": the ", sizes.heads,
                           " heads of a GPT-2 share --hidden-size ", width));
    out.set("head_size", *size, "--kv-channels");
  } else if (width % sizes.heads != 0)
    reading.problem(text("--num-attention-heads ", sizes.heads, " does not divide --hidden-size ",
                         width, ", which ", divisors_of(width), " divide"));
}

// Megatron-LM's fused gelu is the tanh form, and its unfused one is exact.
void map_activation(Reading& reading, RecipeText& out) {
  const bool tanh = reading.has("--openai-gelu");
  if (reading.has("--no-bias-gelu-fusion") && !tanh)
    out.set("activation", std::string("gelu"), "--no-bias-gelu-fusion");
}

void map_dropout(Reading& reading, RecipeText& out) {
  const double hidden = reading.number_or("--hidden-dropout", 0.1, {0, 0.99});
  const double attention = reading.number_or("--attention-dropout", 0.1, {0, 0.99});
  if (hidden > 0) out.set("dropout", hidden, reading.source("--hidden-dropout"));
  if (attention == 0) return;
  out.set("attention_dropout", attention, reading.source("--attention-dropout"));
  out.set("attention", std::string("written"), "the core that has attention_dropout");
}

}  // namespace

void map_model(Reading& reading, const Sizes& sizes, RecipeText& out) {
  const bool llama = is_llama(reading);
  const std::int64_t width = reading.required("--hidden-size", {});
  out.begin("model");
  out.set("name", std::string(llama ? "llama" : "gpt2"),
          llama ? "rotary positions, RMS norm, SwiGLU, no biases"
                : "learned positions, layer norm, gelu, biases");
  out.set("width", width, "--hidden-size");
  out.begin("transformer");
  map_vocabulary(reading, sizes, out);
  map_positions(reading, sizes, llama, out);
  out.set("layers", sizes.layers, "--num-layers");
  map_heads(reading, sizes, width, llama, out);
  out.set("mlp", sizes.mlp, reading.source("--ffn-hidden-size"));
  if (!llama) map_activation(reading, out);
  if (llama && reading.has("--add-qkv-bias"))
    reading.problem(
        "--add-qkv-bias: a Llama's recipe has no biases; nearest: 'config' in [transformer], the "
        "config.json of a model of type qwen2");
  out.set("norm_epsilon", reading.number_or("--norm-epsilon", 1e-5, {1e-12, 1}),
          reading.source("--norm-epsilon"));
  out.set("initial_deviation", reading.number_or("--init-method-std", 0.02, {1e-9, 1000}),
          reading.source("--init-method-std"));
  const bool untied = reading.has("--untie-embeddings-and-output-weights");
  out.set("tied", std::string(untied ? "no" : "yes"),
          reading.source("--untie-embeddings-and-output-weights"));
  map_dropout(reading, out);
}

}  // namespace trestle::megatron
