#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trestle/models/transformer/attend.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// Models by name, for recipes. A model of your own needs none of this: any nn::Layers is one.
namespace trestle::models {

// The settings of a recipe's [model]. 0 means the model's own default.
struct ModelOptions {
  std::string name = "unet";
  std::int64_t in_channels = 0;  // of images; for other models the numbers of a sample
  std::int64_t classes = 0;
  std::int64_t width = 0;
  // "unet" and "unet3d" only: up-sampling by interpolation
  bool bilinear = false;
  std::int64_t depth = 0;                 // "unet3d" only: levels below the first
  std::vector<std::string> pooling = {};  // "unet3d" only: of each level, such as "1x2x2"
  std::uint64_t seed = 42;
  // "gpt2" and "llama" only, which need it; `width` and the image options have no effect on them.
  std::optional<TransformerConfig> transformer = {};
  AttentionCore attention = AttentionCore::Fused;
  LowRankOptions adapters = {};
  FrozenType frozen_type = FrozenType::Float32;
  TensorSplit tensor = {};
  SplitScores scores = SplitScores::Joined;
  bool recompute_attention = false;
};

using MakeModel = std::function<nn::Layers(const ModelOptions&)>;

// A program's own models, by the names that its recipes use.
using OwnModels = std::map<std::string, MakeModel>;

// "unet", "unet3d", "resnet18", "resnet18_flat", "resnet50", "gpt2", "llama", "toy", "two_linears"
// or "mlp".
// Throws UsageError that suggests the nearest name for any other name; also for negative sizes, and
// for an option that the model does not have.
nn::Layers make_model(const ModelOptions& options);

// The plan of tensor parallelism that the model comes with (tensor_parallel/split_plan.h); none for
// a transformer, which ModelOptions::tensor splits when it is made. Throws UsageError for a name
// that make_model() does not know.
std::vector<tensor_parallel::SplitRule> split_plan(const ModelOptions& options);

std::vector<std::string> model_names();

}  // namespace trestle::models
