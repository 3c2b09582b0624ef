#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/gpt/gpt_model.h"

// Well-known transformers by name.
//
//   const plan::GptModel llama = plan::parse_known_model("llama-3-8b,sequence=4096");
namespace trestle::plan {

struct KnownModel {
  std::string_view name;
  GptModel sizes;
  std::string_view from;  // the source of its sizes
};

const std::vector<KnownModel>& known_models();

// A name of known_models(), and after it sizes that differ, as parse_gpt() takes them. Throws
// UsageError for an unknown name, and what with_sizes() throws.
GptModel parse_known_model(std::string_view words);

// The name of the known model with exactly these sizes, or "".
std::string_view name_of(const GptModel& model);

}  // namespace trestle::plan
