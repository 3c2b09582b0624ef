#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// GPT by its sizes: parameters and FLOPs by the formulas of Narayanan et al. 2021, "Efficient
// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM".
namespace trestle::plan {

struct GptModel {
  std::int64_t layers = 1;      // L
  std::int64_t hidden = 1;      // h
  std::int64_t heads = 1;       // a
  std::int64_t sequence = 1;    // s, tokens of an example
  std::int64_t vocabulary = 1;  // V, rows of the table, with its padding
  // The head uses the embedding's table; otherwise it has its own.
  bool tied_head = true;

  friend bool operator==(const GptModel&, const GptModel&) = default;
};

// "layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200". Optional: "tied=no". Throws
// UsageError for a missing, unknown or repeated key, and for a size that is not a number from 1.
GptModel parse_gpt(std::string_view words);

// "GPT of 39.1 billion parameters: 48 layers, hidden 8192, 64 heads, 2048 tokens, vocabulary 51200"
std::string describe(const GptModel& model);

// 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), equation 2 there, which leaves out the last
// norm. A head that is not tied adds V h.
double parameters_of(const GptModel& model);

// FLOPs of the products in one step of `batch` examples, forward and backward, without
// recomputation: 72 B L s h^2 (1 + s / (6 h) + V / (12 L h)).
double model_flops(const GptModel& model, double batch);
// With whole blocks recomputed: 96 B L s h^2 (1 + s / (6 h) + V / (16 L h)), equation 3 there.
double recomputed_flops(const GptModel& model, double batch);

}  // namespace trestle::plan
