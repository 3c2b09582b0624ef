#include "trestle/models/transformer/read_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/strict_json.h"
#include "trestle/models/transformer/activation_names.h"
#include "trestle/models/transformer/config_limits.h"

namespace trestle::models {

namespace {

using nlohmann::json;
using Rope = TransformerConfig::Rope;
using Style = TransformerConfig::Style;

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> types = {"gpt2", "llama", "mistral", "qwen2"};
  return types;
}

std::string as_text(const json& value) {
  constexpr std::size_t longest = 60;
  const std::string whole = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return whole.size() > longest ? whole.substr(0, longest) + "..." : whole;
}

// The values of a JSON object, and every fault that was found in them.
class ConfigValues {
 public:
  ConfigValues(const json& in, std::vector<std::string>& faults) : in_(in), faults_(faults) {}

  void fault(std::string what) const { faults_.push_back(std::move(what)); }

  // Null if the key is missing or null.
  const json* find(const char* key) const {
    const auto found = in_.find(key);
    return found == in_.end() || found->is_null() ? nullptr : &*found;
  }

  // In [1, most]; without a fallback the key is required.
  std::int64_t size(const char* key, std::int64_t most,
                    std::optional<std::int64_t> fallback = {}) const {
    const json* value = find(key);
    if (value == nullptr) {
      if (!fallback) fault(text("'", key, "' is missing"));
      return fallback.value_or(1);
    }
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      fault(text(key, " = ", as_text(*value), " is not a whole number from 1 to ", most));
      return 1;
    }
    return value->get<std::int64_t>();
  }

  // In [least, most].
  double number(const char* key, double least, double most, std::optional<double> fallback) const {
    const json* value = find(key);
    if (value == nullptr) {
      if (!fallback) fault(text("'", key, "' is missing"));
      return fallback.value_or(least);
    }
    const double number = value->is_number() ? value->get<double>() : least - 1;
    if (number >= least && number <= most) return number;
    fault(text(key, " = ", as_text(*value), " is not a number from ", least, " to ", most));
    return least;
  }

  bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fault(text(key, " = ", as_text(*value), " is not true or false"));
    return value->is_boolean() ? value->get<bool>() : fallback;
  }

  std::string word(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fault(text(key, " = ", as_text(*value), " is not a string"));
    return value->is_string() ? value->get<std::string>() : fallback;
  }

  // A choice that the models do not have.
  void refuse(const char* key, const json& value) const {
    fault(text(key, " = ", as_text(value), " is not supported"));
  }
  void refuse_unless(const char* key, bool only, bool fallback) const {
    if (flag(key, fallback) != only) refuse(key, !only);
  }

  TransformerConfig::Activation activation(const char* key, const std::string& fallback) const {
    const std::string name = word(key, fallback);
    const auto found = activation_named(name);
    if (!found)
      fault(text(key, " = ", as_text(name), " is not supported (", join(activation_names(), ", "),
                 ")"));
    return found.value_or(TransformerConfig::Activation::GeluTanh);
  }

  const json& object() const { return in_; }

 private:
  const json& in_;
  std::vector<std::string>& faults_;
};

void check_for_all_types(const ConfigValues& in) {
  in.refuse_unless("is_encoder_decoder", false, false);
  in.refuse_unless("add_cross_attention", false, false);
  if (const json* value = in.find("quantization_config"))
    in.fault(text("its weights are quantised (quantization_config = ", as_text(*value),
                  "), which only GGUF files may be"));
  if (const json* value = in.find("pruned_heads"); value != nullptr && !value->empty())
    in.refuse("pruned_heads", *value);
}

void read_gpt2(const ConfigValues& in, TransformerConfig& out) {
  out.style = Style::Gpt2;
  out.context = in.size("n_positions", most_tokens, 1024);
  out.width = in.size("n_embd", most_width);
  out.layers = in.size("n_layer", most_layers);
  out.heads = out.kv_heads = in.size("n_head", most_width);
  if (out.width % out.heads != 0)
    in.fault(text("n_embd = ", out.width, " is not a multiple of n_head = ", out.heads));
  out.head_size = std::max<std::int64_t>(out.width / out.heads, 1);
  out.mlp = in.size("n_inner", most_mlp, 4 * out.width);
  out.activation = in.activation("activation_function", "gelu_new");
  out.norm_epsilon = in.number("layer_norm_epsilon", 0, 1, 1e-5);
  out.tied_head = in.flag("tie_word_embeddings", true);
  out.qkv_bias = out.out_bias = out.mlp_bias = true;
  out.dropout = {.embedding = in.number("embd_pdrop", 0, 1, 0.1),
                 .residual = in.number("resid_pdrop", 0, 1, 0.1),
                 .attention = in.number("attn_pdrop", 0, 1, 0.1)};
  in.refuse_unless("scale_attn_weights", true, true);
  in.refuse_unless("scale_attn_by_inverse_layer_idx", false, false);
}

// The members of rope_scaling (transformers 4) or rope_parameters (5).
void read_rope_members(const ConfigValues& in, const char* key, Rope& rope) {
  rope.theta = in.number("rope_theta", 1, 1e12, rope.theta);
  std::string type = in.word("rope_type", "");
  if (type.empty()) type = in.word("type", "default");
  if (type == "default") return;
  if (type == "linear") {
    rope.scaling = Rope::Scaling::Linear;
    rope.factor = in.number("factor", 1, 1e6, std::nullopt);
  } else if (type == "llama3") {
    rope.scaling = Rope::Scaling::Llama3;
    rope.factor = in.number("factor", 1, 1e6, std::nullopt);
    rope.low_frequency_factor = in.number("low_freq_factor", 1e-6, 1e6, std::nullopt);
    rope.high_frequency_factor = in.number("high_freq_factor", 1e-6, 1e6, std::nullopt);
    rope.original_context = in.size("original_max_position_embeddings", most_tokens);
    if (rope.high_frequency_factor <= rope.low_frequency_factor)
      in.fault(text("high_freq_factor = ", rope.high_frequency_factor,
                    " is not above low_freq_factor = ", rope.low_frequency_factor));
  } else {
    in.fault(text("the rope_type ", as_text(type), " of ", key,
                  " is not supported (default, linear, llama3)"));
  }
}

void read_rope(const ConfigValues& in, std::vector<std::string>& faults, Rope& rope) {
  rope.theta = in.number("rope_theta", 1, 1e12, 10000);
  if (in.number("partial_rotary_factor", 0, 1, 1) != 1)
    in.refuse("partial_rotary_factor", *in.find("partial_rotary_factor"));
  const json* old_form = in.find("rope_scaling");
  const json* new_form = in.find("rope_parameters");
  if (old_form != nullptr && new_form != nullptr && *old_form != *new_form)
    in.fault("it has both rope_scaling and rope_parameters, and they differ");
  const char* const key = new_form != nullptr ? "rope_parameters" : "rope_scaling";
  const json* const members = new_form != nullptr ? new_form : old_form;
  if (members == nullptr) return;
  if (!members->is_object())
    return in.fault(text(key, " = ", as_text(*members), " is not an object"));
  for (const auto& [name, value] : members->items())
    if (value.is_object())
      return in.fault(text(key, " has values for each kind of layer (", as_text(name),
                           "), which is not supported"));
  const ConfigValues inner(*members, faults);
  read_rope_members(inner, key, rope);
  if (inner.number("partial_rotary_factor", 0, 1, 1) != 1)
    in.refuse("partial_rotary_factor", *inner.find("partial_rotary_factor"));
}

// A window as long as the context hides nothing.
void check_window(const ConfigValues& in, const std::string& type, const TransformerConfig& out) {
  if (type != "mistral" && type != "qwen2") return;
  if (type == "qwen2" && !in.flag("use_sliding_window", false)) return;
  // Without the key, transformers slides over 4096 tokens; with null, not at all.
  const bool is_missing = !in.object().contains("sliding_window");
  const json* value = in.find("sliding_window");
  if (value == nullptr && !is_missing) return;
  const std::int64_t window = in.size("sliding_window", most_tokens, 4096);
  if (window < out.context)
    in.fault(text("sliding_window = ", window, is_missing ? " (the default)" : "",
                  " is not supported: it is shorter than max_position_embeddings = ", out.context));
}

void read_llama(const ConfigValues& in, const std::string& type, std::vector<std::string>& faults,
                TransformerConfig& out) {
  out.style = Style::Llama;
  out.context = in.size("max_position_embeddings", most_tokens,
                        type == "mistral" ? 131072
                        : type == "qwen2" ? 32768
                                          : 2048);
  out.width = in.size("hidden_size", most_width);
  out.layers = in.size("num_hidden_layers", most_layers);
  out.heads = in.size("num_attention_heads", most_width);
  out.kv_heads =
      in.size("num_key_value_heads", most_width, type == "mistral" ? std::int64_t{8} : out.heads);
  if (out.heads % out.kv_heads != 0)
    in.fault(text("num_attention_heads = ", out.heads,
                  " is not a multiple of num_key_value_heads = ", out.kv_heads));
  if (in.find("head_dim") == nullptr && out.width % out.heads != 0)
    in.fault(text("hidden_size = ", out.width, " is not a multiple of num_attention_heads = ",
                  out.heads, ", and there is no head_dim"));
  out.head_size = in.size("head_dim", most_width, std::max<std::int64_t>(out.width / out.heads, 1));
  if (out.head_size % 2 != 0)
    in.fault(text("a head of ", out.head_size, " rows cannot have rotary positions"));
  if (out.head_size * out.heads > most_mlp)
    in.fault(text("heads of ", out.heads, " x ", out.head_size, " rows are more than ", most_mlp));
  out.mlp = in.size("intermediate_size", most_mlp);
  out.activation = in.activation("hidden_act", "silu");
  out.norm_epsilon = in.number("rms_norm_eps", 0, 1, 1e-6);
  out.tied_head = in.flag("tie_word_embeddings", false);
  const bool is_llama = type == "llama";
  out.out_bias = is_llama && in.flag("attention_bias", false);
  out.qkv_bias = type == "qwen2" || out.out_bias;
  out.mlp_bias = is_llama && in.flag("mlp_bias", false);
  out.dropout.attention = in.number("attention_dropout", 0, 1, 0);
  read_rope(in, faults, out.rope);
  check_window(in, type, out);
}

void read_tokens(const ConfigValues& in, TransformerConfig& out) {
  const auto is_in_vocabulary = [&](const json& value) {
    return value.is_number_unsigned() &&
           value.get<std::uint64_t>() < static_cast<std::uint64_t>(out.vocabulary);
  };
  const auto read = [&](const char* key) -> std::optional<std::vector<std::int64_t>> {
    const json* value = in.find(key);
    if (value == nullptr) return std::nullopt;
    std::vector<std::int64_t> tokens;
    for (const json& one : value->is_array() ? *value : json::array({*value})) {
      if (!one.is_number_integer())
        in.fault(text(key, " = ", as_text(*value), " is not a token or a list of tokens"));
      else if (is_in_vocabulary(one))
        tokens.push_back(one.get<std::int64_t>());
    }
    return tokens;
  };
  if (const auto begin = read("bos_token_id"))
    out.begin_token = begin->empty() ? std::nullopt : std::optional(begin->front());
  if (auto end = read("eos_token_id")) out.end_tokens = *std::move(end);
}

}  // namespace

TransformerConfig parse_config(std::string_view bytes, std::string_view generation,
                               const std::string& file) {
  const json parsed = checkpoint::parse_object(bytes, "this config", file);
  std::vector<std::string> faults;
  const ConfigValues in(parsed, faults);
  TransformerConfig out;
  const std::string type = in.word("model_type", "");
  const auto& known = known_model_types();
  if (std::find(known.begin(), known.end(), type) == known.end())
    throw FormatError(type.empty() ? "this config has no model_type"
                                   : text("the model_type ", as_text(type), " is unknown",
                                          did_you_mean(type, known)),
                      {.file = file, .hint = "Known are " + join(known, ", ") + "."});
  out.vocabulary = in.size("vocab_size", most_tokens);
  out.initial_deviation = in.number("initializer_range", 0, 10, 0.02);
  check_for_all_types(in);
  if (type == "gpt2")
    read_gpt2(in, out);
  else
    read_llama(in, type, faults, out);
  read_tokens(in, out);
  if (!generation.empty()) {
    const json beside = checkpoint::parse_object(generation, "generation_config.json", file);
    read_tokens(ConfigValues(beside, faults), out);
  }
  if (faults.empty()) return out;
  throw FormatError(text("this ", type, " model cannot be built: ", join(faults, "; ")),
                    {.file = file});
}

TransformerConfig read_config(const std::filesystem::path& path) {
  std::error_code none;
  const bool is_folder = std::filesystem::is_directory(path, none);
  const std::filesystem::path file = is_folder ? path / "config.json" : path;
  const std::filesystem::path beside = file.parent_path() / "generation_config.json";
  const std::string generation =
      std::filesystem::exists(beside, none) ? read_text_file(beside) : std::string();
  return parse_config(read_text_file(file), generation, file.string());
}

}  // namespace trestle::models
