#include "trestle/deepspeed/folder.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/write_deepspeed_folder.h"

namespace trestle::deepspeed {
namespace {

enum class WeightDecay { Coupled, Decoupled };

template <class Options>
checkpoint::OptimizerValues adam_values(const Options& options, WeightDecay decay) {
  return {{"lr", options.lr()},
          {"betas", std::pair{std::get<0>(options.betas()), std::get<1>(options.betas())}},
          {"eps", options.eps()},
          {"weight_decay", options.weight_decay()},
          {"amsgrad", options.amsgrad()},
          {"decoupled_weight_decay", decay == WeightDecay::Decoupled}};
}

checkpoint::OptimizerValues values_of(const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  if (const auto* const adamw = dynamic_cast<const AdamWOptions*>(&options))
    return adam_values(*adamw, WeightDecay::Decoupled);
  if (const auto* const adam = dynamic_cast<const AdamOptions*>(&options))
    return adam_values(*adam, WeightDecay::Coupled);
  if (const auto* const sgd = dynamic_cast<const SGDOptions*>(&options))
    return {{"lr", sgd->lr()},
            {"momentum", sgd->momentum()},
            {"dampening", sgd->dampening()},
            {"weight_decay", sgd->weight_decay()},
            {"nesterov", sgd->nesterov()}};
  if (const auto* const rmsprop = dynamic_cast<const RMSpropOptions*>(&options))
    return {{"lr", rmsprop->lr()},
            {"momentum", rmsprop->momentum()},
            {"alpha", rmsprop->alpha()},
            {"eps", rmsprop->eps()},
            {"centered", rmsprop->centered()},
            {"weight_decay", rmsprop->weight_decay()}};
  throw UsageError("DeepSpeed's folder of this class of optimizer",
                   {.hint = "Use Adam, AdamW, SGD or RMSprop, or save in trestle's own form."});
}

}  // namespace

std::vector<checkpoint::OptimizerValues> optimizer_values(
    const torch::optim::Optimizer& optimizer) {
  std::vector<checkpoint::OptimizerValues> all;
  for (const auto& group : optimizer.param_groups()) all.push_back(values_of(group.options()));
  return all;
}

void convert_to_folder(const std::filesystem::path& saved, const std::filesystem::path& root,
                       const std::string& tag, const checkpoint::DeepspeedPickle& about,
                       const checkpoint::SaveRanks& ranks) {
  checkpoint::write_deepspeed_folder(checkpoint::CheckpointFolder(saved), root, tag, about, ranks);
}

}  // namespace trestle::deepspeed
