#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/models/transformer/config.h"

// The names of activations in config.json. Internal to trestle/models.
namespace trestle::models {

struct ActivationName {
  std::string_view name;
  TransformerConfig::Activation activation;
};

// The first name of each activation is the one to write.
inline constexpr std::array activation_table = {
    ActivationName{"gelu_new", TransformerConfig::Activation::GeluTanh},
    ActivationName{"gelu_pytorch_tanh", TransformerConfig::Activation::GeluTanh},
    ActivationName{"gelu_fast", TransformerConfig::Activation::GeluTanh},
    ActivationName{"gelu", TransformerConfig::Activation::Gelu},
    ActivationName{"silu", TransformerConfig::Activation::Silu},
    ActivationName{"swish", TransformerConfig::Activation::Silu},
    ActivationName{"relu", TransformerConfig::Activation::Relu}};

inline std::optional<TransformerConfig::Activation> activation_named(std::string_view name) {
  for (const ActivationName& entry : activation_table)
    if (entry.name == name) return entry.activation;
  return std::nullopt;
}

inline std::string name_of(TransformerConfig::Activation activation) {
  for (const ActivationName& entry : activation_table)
    if (entry.activation == activation) return std::string(entry.name);
  return "";
}

inline std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const ActivationName& entry : activation_table) names.emplace_back(entry.name);
  return names;
}

}  // namespace trestle::models
