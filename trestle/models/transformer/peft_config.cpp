#include "trestle/models/transformer/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/strict_json.h"

namespace trestle::models {

namespace {

// Keys that are read, or that do not change what saved adapters compute. Any other key must have
// the value that switches it off.
constexpr std::array<std::string_view, 22> harmless_keys = {"auto_mapping",
                                                            "base_model_name_or_path",
                                                            "bias",
                                                            "corda_config",
                                                            "ensure_weight_tying",
                                                            "eva_config",
                                                            "fan_in_fan_out",
                                                            "inference_mode",
                                                            "init_lora_weights",
                                                            "layers_pattern",
                                                            "loftq_config",
                                                            "lora_alpha",
                                                            "lora_dropout",
                                                            "megatron_core",
                                                            "peft_type",
                                                            "peft_version",
                                                            "qalora_group_size",
                                                            "r",
                                                            "revision",
                                                            "target_modules",
                                                            "task_type",
                                                            "use_rslora"};

std::string shown_value(const nlohmann::json& value) {
  constexpr std::size_t longest = 60;
  const std::string whole = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return whole.size() > longest ? whole.substr(0, longest) + "..." : whole;
}

bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_structured()) && value.empty());
}

// Some ways to begin change the model's own weights too, which the folder then does not have.
bool keeps_the_base(const nlohmann::json& init) {
  return init.is_boolean() || init.is_null() || init == "gaussian" || init == "orthogonal" ||
         init == "eva";
}

double peft_number(const nlohmann::json& in, const char* key, double fallback,
                   std::vector<std::string>& faults) {
  const auto found = in.find(key);
  if (found == in.end()) return fallback;
  const double number = found->is_number() ? found->get<double>() : -1;
  if (number >= 0 && std::isfinite(number)) return number;
  faults.push_back(text(key, " = ", shown_value(*found), " is not a number from 0"));
  return fallback;
}

std::vector<std::string> peft_targets(const nlohmann::json& in, std::vector<std::string>& faults) {
  std::vector<std::string> targets;
  const auto found = in.find("target_modules");
  const bool is_list = found != in.end() && found->is_array() &&
                       std::ranges::all_of(*found, [](const auto& one) { return one.is_string(); });
  if (!is_list) {
    faults.push_back(
        text("target_modules = ", found == in.end() ? std::string("nothing") : shown_value(*found),
             " is not a list of names"));
    return targets;
  }
  for (const auto& one : *found) targets.push_back(one.get<std::string>());
  return targets;
}

}  // namespace

LowRankOptions parse_peft_config(std::string_view bytes, const std::string& file) {
  const nlohmann::json in = checkpoint::parse_object(bytes, "this adapter config", file);
  std::vector<std::string> faults;
  const auto type = in.find("peft_type");
  if (type == in.end() || *type != "LORA")
    throw FormatError(
        text("these adapters are not LoRA: peft_type = ",
             type == in.end() ? std::string("nothing") : shown_value(*type)),
        {.file = file, .hint = "In Python, merge_and_unload() makes a model without adapters."});
  for (const auto& [key, value] : in.items())
    if (!is_off(value) && std::ranges::find(harmless_keys, key) == harmless_keys.end())
      faults.push_back(text(shown_value(key), " = ", shown_value(value), " is not supported"));
  if (const auto bias = in.find("bias"); bias != in.end() && *bias != "none")
    faults.push_back(text("bias = ", shown_value(*bias), " is not supported"));
  if (const auto init = in.find("init_lora_weights"); init != in.end() && !keeps_the_base(*init))
    faults.push_back(text("init_lora_weights = ", shown_value(*init), " is not supported"));
  LowRankOptions out;
  const auto rank = in.find("r");
  constexpr std::uint64_t largest_rank = 65536;
  if (rank == in.end() || !rank->is_number_unsigned() || rank->get<std::uint64_t>() < 1 ||
      rank->get<std::uint64_t>() > largest_rank)
    faults.push_back(text("r = ", rank == in.end() ? std::string("nothing") : shown_value(*rank),
                          " is not a whole number from 1 to ", largest_rank));
  else
    out.rank = rank->get<std::int64_t>();
  out.alpha = peft_number(in, "lora_alpha", 8, faults);
  out.dropout = peft_number(in, "lora_dropout", 0, faults);
  out.targets = peft_targets(in, faults);
  if (const auto stable = in.find("use_rslora"); stable != in.end() && *stable == true)
    out.alpha *= std::sqrt(static_cast<double>(out.rank));
  if (faults.empty()) return out;
  throw FormatError(
      text("these adapters cannot be used: ", join(faults, "; ")),
      {.file = file, .hint = "In Python, merge_and_unload() makes a model without adapters."});
}

std::string to_peft_config(const LowRankOptions& adapters, TransformerConfig::Style style) {
  const nlohmann::ordered_json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", nullptr},
      {"r", adapters.rank},
      {"lora_alpha", adapters.alpha},
      {"lora_dropout", adapters.dropout},
      {"target_modules", adapters.targets},
      {"fan_in_fan_out", style == TransformerConfig::Style::Gpt2},
      {"bias", "none"},
      {"inference_mode", true}};
  return config.dump(2) + "\n";
}

}  // namespace trestle::models
