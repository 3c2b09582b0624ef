#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <iosfwd>
#include <memory>

#include "trestle/comm/group.h"
#include "trestle/nn/layers.h"

// Batch norm over all ranks' samples: torch.nn.SyncBatchNorm of Python, on the CPU too.
namespace trestle::sync_batch_norm {

// In training all ranks of the group call it together, each with its own samples: any number of
// them, also one or none. A rank without samples takes part with an empty tensor, in the backward
// too. In evaluation, and in a group of one rank, it sends nothing.
//
//   torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3),
//                             SyncBatchNorm(torch::nn::BatchNormOptions(8), world.group()),
//                             torch::nn::ReLU());
//
// Input and output are [samples, channels] or [samples, channels, ...], in any memory format.
// Parameters and buffers have BatchNorm's names, and options have their meaning: momentum nullopt
// averages over all batches. Input of bf16 or fp16 is normalised in float32. Weight and bias may
// have either dtype.
//
// The gradients of weight and bias are those of this rank's samples. They must be summed over ranks
// as all gradients are. A forward all-gathers 2 * channels + 1 float64 values, a backward
// all-reduces 2 * channels. Their order among the group's other collectives is the same on all
// ranks as long as all run the same net. If other threads use the group at the same time, give the
// batch norms a group of their own (World::make_group).
//
// Ranks that are threads of one process need a device each, or the plain CPU. Ranks that share a
// virtual device or a GPU would share its backward thread, in which each would wait for the other.
// The first forward in training checks that, and that eps and momentum agree: UsageError on all
// ranks. Throws UsageError for input with another number of channels or fewer than two dimensions,
// and where all ranks together have fewer than two values per channel.
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

// Makes every BatchNorm1d, 2d and 3d in `module`, `module` itself included, normalise over all
// ranks' samples from the next training forward on. Returns their number. Modules, parameters,
// buffers and their names stay the same, and so does the way to call them. The conversion belongs
// to the batch norm's running statistics, on any device and in any dtype. clone() and reset() make
// new ones, so convert last. A second conversion moves a batch norm to another group; a group of
// one rank restores torch's batch norm.
//
// Throws UsageError, with their names and before any change, for batch norms without running
// statistics, which cannot be identified: use SyncBatchNorm there. Torch's modules refuse a rank's
// batch of one value per channel; SyncBatchNorm accepts it. Not for a pipeline that updates
// statistics once for the whole batch (nn::BatchNormStatistics::WholeBatch), which normalises each
// micro-batch by its own.
std::size_t convert_sync_batch_norm(const std::shared_ptr<torch::nn::Module>& module,
                                    const comm::Group& group);
std::size_t convert_sync_batch_norm(const nn::Layers& layers,
                                    const comm::Group& group);  // makes all layers

}  // namespace trestle::sync_batch_norm

namespace trestle {
using sync_batch_norm::convert_sync_batch_norm;
using sync_batch_norm::SyncBatchNorm;
}  // namespace trestle
