#include "trestle/parallel/checkpoint_layers.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/layer.h"
#include "trestle/recompute/checkpoint.h"
#include "trestle/tensor_parallel/flat_shard.h"

namespace trestle {
namespace {

constexpr const char* all_layers = "layers";

bool is_named(const nn::Layer& layer, const std::string& name) {
  if (name == all_layers) return static_cast<bool>(layer.module);
  return layer.name == name || layer.name.starts_with(name + ".");
}

// A layer without parameters, such as an activation, keeps no more than its arguments. Whether it
// has some is known when its rank has created it.
enum class Scope { EachLayer, WithParameters };

// Keeps a layer's arguments as shards.
class ArgumentShards {
 public:
  explicit ArgumentShards(tensor_parallel::TensorRanks ranks) : ranks_(std::move(ranks)) {}

  void use(const nn::Values& arguments, nn::CheckpointOptions* options) const {
    if (!ranks_.exist()) {
      options->keep_random =
          false;                   // gathered values are not those of the first run: no comparison
    } else if (!*are_compared_) {  // the graph is the same in each step, so one check is enough
      compare(arguments);
      *are_compared_ = true;
    }
    options->keep_input = [ranks = ranks_](const at::Tensor& input) -> nn::KeptInput {
      if (!input.is_floating_point() || input.numel() == 0) return {.kept = input};
      return {
          .kept = tensor_parallel::flat_shard(ranks, input),
          .restore = [ranks, layout = tensor_parallel::DenseLayout(input)](const at::Tensor& kept) {
            return tensor_parallel::gather_flat(ranks, kept, layout);
          }};
    };
  }

 private:
  void compare(const nn::Values& arguments) const {
    std::string own = nn::describe(arguments);
    for (const at::Tensor& one : arguments) {
      if (!one.defined()) continue;
      const at::Tensor bytes = to_device(one.detach(), at::kCPU).contiguous();
      own +=
          text(", hash ", fnv1a(std::string_view(static_cast<const char*>(bytes.const_data_ptr()),
                                                 bytes.nbytes())));
    }
    const auto difference = comm::with_purpose(
        [&] {
          return text("while the tensor ranks compared the arguments of '", ranks_.layer(), "'");
        },
        [&] { return comm::find_difference(ranks_.group(), own); });
    if (!difference) return;
    throw UsageError(
        text("the recomputed layer '", ranks_.layer(),
             "' cannot keep shards of its arguments, which differ: ", difference->first,
             " on tensor rank 0, ", difference->other, " on tensor rank ", difference->rank),
        {.hint =
             "Layers on shards of the tokens, and between a column and a row layer, keep shards "
             "already: leave split_arguments out for them."});
  }

  tensor_parallel::TensorRanks ranks_;
  std::shared_ptr<std::atomic<bool>> are_compared_ = std::make_shared<std::atomic<bool>>(false);
};

void recompute_alone(nn::Layer& layer, Scope scope, const tensor_parallel::TensorRanks& ranks) {
  layer.forward = [module = layer.module, scope, shards = ArgumentShards(ranks.of(layer.name)),
                   is_alone = ranks.alone(),
                   inner = std::move(layer.forward)](const nn::Values& arguments) {
    if (scope == Scope::WithParameters && module.make()->parameters().empty())
      return inner(arguments);
    nn::CheckpointOptions options;
    if (module) options.modules.push_back(module.make());
    if (!is_alone && recompute::gradients_are_on()) shards.use(arguments, &options);
    return nn::checkpoint(options, inner, arguments);
  };
}

void check_names(const nn::Graph& graph, const std::vector<std::string>& names) {
  std::vector<std::string> known = {all_layers};
  for (const nn::Layer& layer : graph.layers) known.push_back(layer.name);
  for (const std::string& name : names)
    if (std::none_of(graph.layers.begin(), graph.layers.end(),
                     [&](const nn::Layer& layer) { return is_named(layer, name); }))
      throw_unknown("layer", name, known);
}

}  // namespace

std::function<void(nn::Graph&)> checkpoint_layers(std::vector<std::string> names,
                                                  CheckpointLayersOptions options) {
  return [names = std::move(names), options = std::move(options)](nn::Graph& graph) {
    check_names(graph, names);
    for (nn::Layer& layer : graph.layers) {
      const auto named = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
        return is_named(layer, name);
      });
      if (named == names.end()) continue;
      recompute_alone(layer, *named == all_layers ? Scope::WithParameters : Scope::EachLayer,
                      options.split_arguments);
    }
  };
}

}  // namespace trestle
