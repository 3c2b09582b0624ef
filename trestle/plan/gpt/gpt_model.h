#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// GPT by its sizes: parameters and FLOPs by the formulas of Narayanan et al. 2021, "Efficient
// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM". Models in the manner of
// Llama are others of the same struct. known_models.h has well-known ones by name.
//
//   const plan::GptModel gpt = plan::parse_gpt(
//       "layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200");
//   const double billions = plan::parameters_of(gpt) / 1e9;
namespace trestle::plan {

struct GptModel {
  // Gpt2: learned positions, layer norms, biases, an MLP of two matrices. Llama: rotated positions,
  // RMS norms, no bias, a gated MLP (SwiGLU) of three matrices.
  enum class Family { Gpt2, Llama };

  std::int64_t layers = 1;      // L
  std::int64_t hidden = 1;      // h
  std::int64_t heads = 1;       // a
  std::int64_t sequence = 1;    // s, tokens of an example
  std::int64_t vocabulary = 1;  // V, rows of the table, with its padding
  // The head uses the embedding's table; otherwise it has its own.
  bool tied_head = true;
  Family family = Family::Gpt2;
  std::int64_t kv_heads = 0;      // heads of keys and values; 0 = heads
  std::int64_t feed_forward = 0;  // inner width of the MLP; 0 = 4 h
  bool flash = false;             // attention in one kernel, which stores no scores

  std::int64_t heads_of_keys() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t inner() const { return feed_forward > 0 ? feed_forward : 4 * hidden; }
  // GPT as published: an MLP of 4 h, and its own keys and values for each head.
  bool is_plain() const {
    return family == Family::Gpt2 && heads_of_keys() == heads && inner() == 4 * hidden;
  }
  friend bool operator==(const GptModel&, const GptModel&) = default;
};

// Throws UsageError, which begins with `name`, for a size below 1 or too large to plan with, and
// for heads that do not divide.
void check(const GptModel& model, const std::string& name = "the GPT");

// "layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200". Optional: "tied=no", kv_heads,
// feed_forward, "attention=flash". Throws UsageError for a missing, unknown or repeated key, for a
// size that is not a number from 1, and for heads that do not divide.
GptModel parse_gpt(std::string_view words);
// "layers=32,hidden=4096,heads=32,kv_heads=8,feed_forward=14336,sequence=8192,vocabulary=128256".
// Optional: kv_heads, and "tied=yes". Attention is flash. Throws as parse_gpt().
GptModel parse_llama(std::string_view words);
// The model with the sizes that `words` give: "sequence=4096". `flag` names it in messages. Throws
// as parse_gpt().
GptModel with_sizes(GptModel model, std::string_view words, const std::string& flag);

// "GPT of 39.1 billion parameters: 48 layers, hidden 8192, 64 heads, 2048 tokens, vocabulary
// 51200". Below 0.1 billion they are counted in millions, and below 0.1 million one by one.
std::string describe(const GptModel& model);

// 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), equation 2 there, which leaves out the last
// norm. A head that is not tied adds V h. Llama: the count with all norms.
double parameters_of(const GptModel& model);

// FLOPs of the products in one step of `batch` examples, forward and backward, without
// recomputation: 72 B L s h^2 (1 + s / (6 h) + V / (12 L h)). Other widths: three times the
// forward's, which for each token is
//
//     L (4 h^2 (1 + kv / a) + 2 m h f + 4 s h) + 2 h V      with m = 2 matrices, gated 3
//
// Causal masks are not discounted: 4 s h is the attention to all tokens.
double model_flops(const GptModel& model, double batch);
std::string flops_formula(const GptModel& model);
// Those of a block's matrices in the forward of a token, without attention: 24 h^2 for GPT.
double matrix_flops(const GptModel& model);
// With whole blocks recomputed: 96 B L s h^2 (1 + s / (6 h) + V / (16 L h)), equation 3 there. For
// GPT with an MLP of 4 h.
double recomputed_flops(const GptModel& model, double batch);

}  // namespace trestle::plan
