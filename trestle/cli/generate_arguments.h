#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/cli/model_ranks.h"
#include "trestle/generate/choose_token.h"
#include "trestle/train/run_folder/run_checkpoint.h"

namespace trestle::cli {

// The parsed flags of `trestle generate`.
struct GenerateArguments {
  std::vector<std::string> prompts;
  std::filesystem::path prompt_file;
  std::string ids;
  std::filesystem::path tokenizer, adapter, chat_template;
  train::Checkpoint checkpoint = train::Checkpoint::Best;
  generate::ChoiceOptions choice{.temperature = 0.8, .top_k = 0};
  std::int64_t tokens = 128, batch = 8;
  std::vector<std::string> stop;
  std::string today;
  std::string temperature, top_p, repetition_penalty, precision = "fp32";
  ModelRanks on;  // the model, and the ranks that split it
  bool greedy = false, slide = false, chat = false, special = false, json = false;
};

}  // namespace trestle::cli
