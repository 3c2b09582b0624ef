#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/batch_norm_kernel.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"
#include "trestle/sync_batch_norm/sync_batch_norm_function.h"

namespace trestle::sync_batch_norm {
namespace {

// The kernel of a converted batch norm.
class OverRanks : public device::BatchNormKernel {
 public:
  explicit OverRanks(comm::Group group) : group_(std::move(group)) {}

  at::Tensor run(const device::BatchNormCall& call) override {
    if (!call.training || group_.size() == 1) return plain_batch_norm(call);
    if (!ranks_agree_.exchange(true))
      check_batch_norm_ranks(group_, call.input, text("eps ", call.eps));
    return sync_batch_norm(
        call.input, call.weight, call.bias,
        {.mean = call.running_mean, .variance = call.running_var, .momentum = call.momentum},
        call.eps, group_);
  }

 private:
  const comm::Group group_;
  std::atomic<bool> ranks_agree_ = false;
};

struct BatchNorm {
  std::string name;
  at::Tensor mean, variance;
};

template <class Impl>
bool add_if(const torch::nn::Module& module, const std::string& name, std::vector<BatchNorm>& to) {
  const auto* const norm = dynamic_cast<const Impl*>(&module);
  if (norm != nullptr) to.push_back({name, norm->running_mean, norm->running_var});
  return norm != nullptr;
}

void add(const torch::nn::Module& module, const std::string& prefix, std::vector<BatchNorm>& to) {
  for (const auto& item : module.named_modules(prefix)) {
    const std::string name = item.key().empty() ? item.value()->name() : item.key();
    add_if<torch::nn::BatchNorm1dImpl>(*item.value(), name, to) ||
        add_if<torch::nn::BatchNorm2dImpl>(*item.value(), name, to) ||
        add_if<torch::nn::BatchNorm3dImpl>(*item.value(), name, to);
  }
}

std::size_t convert(const std::vector<BatchNorm>& norms, const comm::Group& group) {
  if (!group.valid())
    throw UsageError("convert_sync_batch_norm() needs a group that contains this rank",
                     {.hint = "World::group() contains all ranks."});
  std::vector<std::string> refused;
  for (const BatchNorm& norm : norms)
    if (!norm.mean.defined()) refused.push_back(text("'", norm.name, "'"));
  if (!refused.empty()) {
    throw UsageError(
        text("batch norms without running statistics cannot be converted: ", join(refused, ", ")),
        {.hint = "Nothing was changed. Use SyncBatchNorm in their place."});
  }
  for (const BatchNorm& norm : norms) {
    const auto kernel = std::make_shared<OverRanks>(group);
    device::set_batch_norm_kernel(norm.mean, kernel);
    device::set_batch_norm_kernel(norm.variance, kernel);
  }
  return norms.size();
}

}  // namespace

std::size_t convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>& module,
                                    const comm::Group& group) {
  std::vector<BatchNorm> norms;
  add(*module, "", norms);
  return convert(norms, group);
}

std::size_t convert_sync_batch_norm(const nn::Layers& layers, const comm::Group& group) {
  const nn::Graph graph = layers.graph();
  std::vector<BatchNorm> norms;
  for (const nn::Layer& layer : graph.layers) {
    if (layer.module) add(*layer.module.make(), layer.name, norms);
  }
  return convert(norms, group);
}

}  // namespace trestle::sync_batch_norm
