#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <optional>
#include <vector>

#include "trestle/nn/buffer_keeper.h"

namespace torch::nn {
class Module;
struct BatchNormOptions;
}  // namespace torch::nn

// Batch norm with the running statistics of the whole mini-batch, although each micro-batch is
// normalised by its own (deferred_batch_norm of torchgpipe and GPipe, section 3 of
// https://arxiv.org/abs/1811.06965).
namespace trestle::nn {

// The statistics of some modules' batch norms over one mini-batch. Modules stay as they are: what
// they see is taken down where they call torch::batch_norm, so that those inside of other modules
// count too. A batch norm in evaluation mode, or one without running statistics, is left alone.
//
//   DeferredBatchNorm norms(model->modules());
//   for (const at::Tensor& micro_batch : mini_batch.chunk(4)) {
//     const DeferredBatchNorm::Watch watch(norms);
//     model->forward(micro_batch);  // the running statistics stay as they are
//   }
//   norms.commit();                 // as if the whole mini-batch had come at once
class DeferredBatchNorm {
 public:
  // `modules`: children are looked at only where they are listed too, as module->modules() does.
  // What is no BatchNorm1d, 2d or 3d does not count.
  explicit DeferredBatchNorm(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  class Watch;

  // Moves the running statistics, once, by what all watched forwards together saw: by the momentum,
  // or, without one, to the average over all mini-batches. The variance is unbiased, as in torch.
  // Statistics of several pieces are merged as Chan, Golub and LeVeque do (1979), in double
  // precision. Without effect where nothing was watched.
  void commit();

 private:
  struct Norm {
    std::shared_ptr<torch::nn::Module> module;
    torch::nn::BatchNormOptions* options = nullptr;
    at::Tensor* mean = nullptr;  // the module's members
    at::Tensor* variance = nullptr;
    at::Tensor* batches = nullptr;

    // Over what was seen so far.
    double count = 0;  // values for each channel
    at::Tensor seen_mean = {};
    at::Tensor seen_squares = {};  // sum of squared deviations from the mean

    void add(double values);
  };

  std::vector<Norm> norms_;
};

// While it lives, this thread's forwards are taken down.
class DeferredBatchNorm::Watch {
 public:
  explicit Watch(DeferredBatchNorm& norms);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  struct Watched {
    Norm* norm;
    std::optional<double> momentum;
  };
  struct Callbacks;

  std::vector<Watched> watched_;
  std::optional<BufferKeeper> buffers_;
  std::optional<at::CallbackHandle> handle_;
  Watch* outer_ = nullptr;
};

}  // namespace trestle::nn
