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
// normalized by its own (deferred_batch_norm of torchgpipe and GPipe, section 3 of
// https://arxiv.org/abs/1811.06965).
namespace trestle::nn {

// The statistics of some modules' batch norms over one mini-batch. Modules stay unchanged: their
// inputs are recorded at the call of torch::batch_norm, so batch norms inside of other modules
// count too. A batch norm in evaluation mode, or one without running statistics, is left alone.
//
//   DeferredBatchNorm norms(model->modules());
//   for (const at::Tensor& micro_batch : mini_batch.chunk(4)) {
//     const DeferredBatchNorm::Watch watch(norms);
//     model->forward(micro_batch);  // the running statistics stay as they are
//   }
//   norms.commit();                 // as if the whole mini-batch had been one batch
class DeferredBatchNorm {
 public:
  // `modules` must list children too, as module->modules() does. Only BatchNorm1d, 2d and 3d count.
  explicit DeferredBatchNorm(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  class Watch;

  // Updates the running statistics once, by all recorded forwards together: by the momentum, or,
  // without one, to the average over all mini-batches. The variance is unbiased, as in torch.
  // Statistics of several inputs are merged as in Chan, Golub and LeVeque (1979), in double
  // precision. Does nothing if nothing was recorded.
  void commit();

 private:
  struct Norm {
    std::shared_ptr<torch::nn::Module> module;
    torch::nn::BatchNormOptions* options = nullptr;
    at::Tensor* mean = nullptr;  // the module's members
    at::Tensor* variance = nullptr;
    at::Tensor* batches = nullptr;

    // Over the inputs so far.
    double count = 0;  // values for each channel
    at::Tensor seen_mean = {};
    at::Tensor seen_squares = {};  // sum of squared deviations from the mean

    void add(double values);
  };

  std::vector<Norm> norms_;
};

// Records this thread's forwards while it lives.
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
