#include "trestle/models/transformer/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/gguf/gguf_header.h"
#include "trestle/checkpoint/files/pickle/pickle.h"
#include "trestle/models/transformer/config_limits.h"

namespace trestle::models {

namespace {

using checkpoint::GgufHeader;
using checkpoint::GgufTensor;
using checkpoint::GgufValue;
using Rope = TransformerConfig::Rope;
using Style = TransformerConfig::Style;

constexpr std::string_view rope_factors_name = "rope_freqs.weight";

const GgufTensor* find_tensor(const GgufHeader& header, std::string_view name) {
  const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == header.tensors.end() ? nullptr : &*found;
}

// The metadata of one architecture, and every fault that was found in it.
class GgufValues {
 public:
  GgufValues(const GgufHeader& header, std::string architecture)
      : header_(header), architecture_(std::move(architecture)) {}

  void fault(std::string what) { faults_.push_back(std::move(what)); }
  const std::vector<std::string>& faults() const { return faults_; }

  bool has_tensor(std::string_view name) const { return find_tensor(header_, name) != nullptr; }

  // In [1, most]; without a fallback the key is required. An array has one value for all blocks.
  std::int64_t size(const std::string& key, std::int64_t most,
                    std::optional<std::int64_t> fallback = {}) {
    const GgufValue* value = find(key);
    if (value == nullptr) {
      if (!fallback) fault(text("the key ", full(key), " is missing"));
      return fallback.value_or(1);
    }
    std::optional<std::int64_t> number;
    if (const auto* one = std::get_if<std::int64_t>(value)) number = *one;
    if (const auto* all = std::get_if<std::vector<std::int64_t>>(value); all && !all->empty()) {
      number = all->front();
      if (std::any_of(all->begin(), all->end(), [&](std::int64_t one) { return one != *number; }))
        fault(text(full(key), " differs by block, which is not supported"));
    }
    if (number && *number >= 1 && *number <= most) return *number;
    fault(text(full(key), number ? text(" = ", *number) : "", " is not a whole number from 1 to ",
               most));
    return 1;
  }

  double number(const std::string& key, double least, double most, std::optional<double> fallback) {
    const GgufValue* value = find(key);
    if (value == nullptr) {
      if (!fallback) fault(text("the key ", full(key), " is missing"));
      return fallback.value_or(least);
    }
    const auto* real = std::get_if<double>(value);
    if (real != nullptr && *real >= least && *real <= most) return *real;
    fault(text(full(key), real != nullptr ? text(" = ", *real) : "", " is not a number from ",
               least, " to ", most));
    return least;
  }

  std::string word(const std::string& key, const std::string& fallback) {
    const GgufValue* value = find(key);
    if (value == nullptr) return fallback;
    if (const auto* word = std::get_if<std::string>(value)) return *word;
    fault(text(full(key), " is not a string"));
    return fallback;
  }

  std::optional<std::int64_t> token(const char* key, std::int64_t vocabulary) const {
    const auto* id = header_.find<std::int64_t>(text("tokenizer.ggml.", key));
    if (id == nullptr || *id < 0 || *id >= vocabulary) return std::nullopt;
    return *id;
  }

  // The number of rows of the embedding's table.
  std::int64_t vocabulary() {
    const GgufTensor* table = find_tensor(header_, "token_embd.weight");
    if (table != nullptr && table->shape.size() == 2 && table->shape[0] >= 1 &&
        table->shape[0] <= most_tokens)
      return table->shape[0];
    fault("there is no tensor token_embd.weight [vocabulary, width]");
    return 1;
  }

 private:
  std::string full(const std::string& key) const { return architecture_ + "." + key; }
  const GgufValue* find(const std::string& key) const {
    const auto found = header_.metadata.find(full(key));
    return found == header_.metadata.end() ? nullptr : &found->second;
  }

  const GgufHeader& header_;
  std::string architecture_;
  std::vector<std::string> faults_;
};

void read_common(GgufValues& in, TransformerConfig& out) {
  out.vocabulary = in.vocabulary();
  out.context = in.size("context_length", most_tokens);
  out.width = in.size("embedding_length", most_width);
  out.layers = in.size("block_count", most_layers);
  out.mlp = in.size("feed_forward_length", most_mlp);
  out.heads = in.size("attention.head_count", most_width);
  out.kv_heads = in.size("attention.head_count_kv", most_width, out.heads);
  if (out.heads % out.kv_heads != 0)
    in.fault(text(out.heads, " heads are not a multiple of ", out.kv_heads, " key heads"));
  out.tied_head = !in.has_tensor("output.weight");
  if (const auto begin = in.token("bos_token_id", out.vocabulary)) out.begin_token = begin;
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"})
    if (const auto end = in.token(key, out.vocabulary);
        end &&
        std::find(out.end_tokens.begin(), out.end_tokens.end(), *end) == out.end_tokens.end())
      out.end_tokens.push_back(*end);
}

void read_gpt2_of_gguf(GgufValues& in, TransformerConfig& out) {
  out.style = Style::Gpt2;
  if (out.kv_heads != out.heads)
    in.fault(text(out.heads, " heads with ", out.kv_heads, " key heads in a GPT-2"));
  if (out.width % out.heads != 0)
    in.fault(text("the width ", out.width, " is not a multiple of ", out.heads, " heads"));
  out.head_size = std::max<std::int64_t>(out.width / out.heads, 1);
  out.norm_epsilon = in.number("attention.layer_norm_epsilon", 0, 1, std::nullopt);
}

// The divisor that llama.cpp has for a frequency in models of Llama 3.
double llama3_factor(double frequency, const Rope& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(rope.original_context);
  if (wavelength < context / rope.high_frequency_factor) return 1;
  if (wavelength > context / rope.low_frequency_factor) return rope.factor;
  const double smooth = (context / wavelength - rope.low_frequency_factor) /
                        (rope.high_frequency_factor - rope.low_frequency_factor);
  return 1 / ((1 - smooth) / rope.factor + smooth);
}

void read_rope_factors(GgufValues& in, const std::vector<float>& factors, TransformerConfig& out) {
  if (!in.has_tensor(rope_factors_name)) return;
  if (factors.empty())
    return in.fault(text("its tensor ", rope_factors_name, " scales the rotary positions"));
  Rope rope = out.rope;
  rope.scaling = Rope::Scaling::Llama3;
  rope.factor = *std::max_element(factors.begin(), factors.end());
  rope.low_frequency_factor = 1;
  rope.high_frequency_factor = 4;
  rope.original_context = 8192;
  bool fits = static_cast<std::int64_t>(2 * factors.size()) == out.head_size && rope.factor >= 1;
  for (std::size_t i = 0; fits && i < factors.size(); ++i) {
    const double share = 2 * static_cast<double>(i) / static_cast<double>(out.head_size);
    const double wanted = llama3_factor(std::pow(rope.theta, -share), rope);
    fits = std::abs(static_cast<double>(factors[i]) - wanted) <= 1e-4 * wanted;
  }
  if (!fits)
    return in.fault(text("its tensor ", rope_factors_name,
                         " is not Llama 3's scaling of the rotary positions from 8192 tokens"));
  if (out.rope.scaling != Rope::Scaling::None)
    return in.fault(text("it has both rope.scaling and the tensor ", rope_factors_name));
  out.rope = rope;
}

void read_llama_of_gguf(GgufValues& in, const std::vector<float>& factors, TransformerConfig& out) {
  out.style = Style::Llama;
  out.activation = TransformerConfig::Activation::Silu;
  out.qkv_bias = in.has_tensor("blk.0.attn_q.bias");
  out.out_bias = in.has_tensor("blk.0.attn_output.bias");
  out.mlp_bias = in.has_tensor("blk.0.ffn_down.bias");
  out.norm_epsilon = in.number("attention.layer_norm_rms_epsilon", 0, 1, std::nullopt);
  out.head_size =
      in.size("attention.key_length", most_width, std::max<std::int64_t>(out.width / out.heads, 1));
  const std::int64_t values = in.size("attention.value_length", most_width, out.head_size);
  if (values != out.head_size)
    in.fault(text("heads with ", out.head_size, " rows of keys and ", values, " of values"));
  if (const auto rotated = in.size("rope.dimension_count", most_width, out.head_size);
      rotated != out.head_size || rotated % 2 != 0)
    in.fault(text("rotary positions of ", rotated, " of ", out.head_size, " rows of a head"));
  if (out.head_size * out.heads > most_mlp)
    in.fault(text("heads of ", out.heads, " x ", out.head_size, " rows are more than ", most_mlp));
  out.rope.theta = in.number("rope.freq_base", 1, 1e12, 10000);
  // As llama.cpp reads them: "linear" is the default, and older files have another key.
  const std::string scaling = in.word("rope.scaling.type", "linear");
  if (scaling == "linear") {
    const double older = in.number("rope.scale_linear", 1, 1e6, 1);
    const double factor = in.number("rope.scaling.factor", 1, 1e6, older);
    if (factor != 1) {
      out.rope.scaling = Rope::Scaling::Linear;
      out.rope.factor = factor;
    }
  } else if (scaling != "none") {
    in.fault(text("rope.scaling.type = '", checkpoint::shown(scaling),
                  "' is not supported (none, linear)"));
  }
  read_rope_factors(in, factors, out);
  for (const char* tensor : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (in.has_tensor(tensor)) in.fault(text("its tensor ", tensor, " is not supported"));
  if (in.has_tensor("blk.0.ffn_gate_inp.weight"))
    in.fault("its blocks choose among experts, which is not supported");
  if (const auto window = in.size("attention.sliding_window", most_tokens, out.context);
      window < out.context)
    in.fault(text("a sliding window of ", window, " tokens is not supported"));
}

}  // namespace

TransformerConfig config_of_gguf(const GgufHeader& header, const std::vector<float>& rope_factors) {
  const auto* architecture = header.find<std::string>("general.architecture");
  if (architecture == nullptr || (*architecture != "llama" && *architecture != "gpt2"))
    throw FormatError(
        architecture == nullptr
            ? "this GGUF file has no general.architecture"
            : text("the architecture '", checkpoint::shown(*architecture), "' is not supported"),
        {.file = header.file, .hint = "Supported are llama and gpt2."});
  GgufValues in(header, *architecture);
  TransformerConfig out;
  read_common(in, out);
  if (*architecture == "gpt2")
    read_gpt2_of_gguf(in, out);
  else
    read_llama_of_gguf(in, rope_factors, out);
  if (in.faults().empty()) return out;
  throw FormatError(
      text("this ", *architecture, " model cannot be built: ", join(in.faults(), "; ")),
      {.file = header.file});
}

TransformerConfig read_gguf_config(const std::filesystem::path& path) {
  const checkpoint::FileBytes file(path);
  const GgufHeader header = checkpoint::read_gguf_header(file);
  std::vector<float> factors;
  const GgufTensor* tensor = find_tensor(header, rope_factors_name);
  if (tensor != nullptr && tensor->type == checkpoint::GgufType::F32) {
    factors.resize(static_cast<std::size_t>(tensor->bytes / sizeof(float)));
    file.read(tensor->begin, factors.data(), tensor->bytes);
  }
  return config_of_gguf(header, factors);
}

}  // namespace trestle::models
