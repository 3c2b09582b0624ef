#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <iosfwd>
#include <memory>

#include "trestle/comm/group.h"
#include "trestle/nn/layers.h"

// Batch norm whose statistics are those of all ranks' samples: torch.nn.SyncBatchNorm of Python, on
// the CPU too.
namespace trestle::sharding {

// In training all ranks of the group call it together, each with its own samples: of any number,
// also one, or none at all (then it takes part with an empty tensor, and in the backward too). In
// evaluation, and in a group of one rank, nothing is sent.
//
//   torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3),
//                             SyncBatchNorm(torch::nn::BatchNormOptions(8), world.group()),
//                             torch::nn::ReLU());
//
// Input and output are [samples, channels] or [samples, channels, ...], in any order of memory.
// Parameters and buffers have BatchNorm's names, and its options have their meaning: momentum
// nullopt takes the average over all batches. Input of bf16 or fp16 is normalised in float32;
// weight and bias may be of either type.
//
// The gradients of weight and bias are of this rank's samples: whoever sums gradients over ranks
// sums them too. The all-gather of a forward is 2 * channels + 1 float64, the all-reduce of a
// backward 2 * channels. Both keep their order among the group's other collectives as long as all
// ranks run the same net; where other threads use the group at the same time, give the batch norms
// a group of their own (World::make_group).
//
// Ranks that are threads of one process have a device each, or the plain CPU: those that share a
// virtual device or a GPU would share its backward thread, and wait for each other for ever. The
// first forward in training checks that, and that eps and momentum agree: UsageError on all ranks.
// UsageError for input of other channels or fewer than two dimensions, and where all ranks have
// fewer than two values a channel together.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group);

  void reset() override;
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& input);

  const comm::Group& group() const { return group_; }

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;  // undefined without affine
  at::Tensor running_mean, running_var, num_batches_tracked;

 private:
  void check(const at::Tensor& input) const;
  double next_momentum();

  comm::Group group_;
  bool ranks_agree_ = false;
};
TORCH_MODULE(SyncBatchNorm);

// Has every BatchNorm1d, 2d and 3d in `module`, `module` itself included, count the samples of all
// ranks from the next training forward on, and returns how many these are. Nothing is exchanged:
// modules, parameters, buffers and their names stay what they are, and it does not matter how a
// batch norm is called. It holds for the running statistics that the batch norm has, on whatever
// device and in whatever dtype: clone() and reset() make others, so convert last. With another
// group it is moved to that one; a group of one rank is torch's own batch norm again.
//
// UsageError, by name and before anything is changed, for batch norms without running statistics,
// which nothing tells apart: write SyncBatchNorm there. Torch's modules refuse a rank's batch of
// one value per channel by themselves; SyncBatchNorm takes it. Not for a pipeline that moves
// statistics once for the whole batch (nn::BatchNormStatistics::WholeBatch): that takes each rank's
// for one piece.
std::size_t convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>& module,
                                    const comm::Group& group);
std::size_t convert_sync_batch_norm(const nn::Layers& layers,
                                    const comm::Group& group);  // makes all

}  // namespace trestle::sharding

namespace trestle {
using sharding::SyncBatchNorm;
}  // namespace trestle
