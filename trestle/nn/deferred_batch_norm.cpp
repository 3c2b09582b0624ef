#ifndef NDEBUG
#error "Without NDEBUG RecordFunction::inputs() throws; trestle_use_torch() in CMake defines it."
#endif

#include "trestle/nn/deferred_batch_norm.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace trestle::nn {
namespace {

template <class Impl, class Use>
bool use_if(torch::nn::Module& module, Use use) {
  auto* const norm = dynamic_cast<Impl*>(&module);
  if (norm != nullptr) use(*norm);
  return norm != nullptr;
}

// autograd saves running statistics, and a changed version would invalidate its graph; torch's own
// update does not change the version either.
void write(const at::Tensor& statistic, const at::Tensor& value) {
  statistic.variable_data().copy_(value);
}

}  // namespace

DeferredBatchNorm::DeferredBatchNorm(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  for (const auto& module : modules) {
    const auto keep = [&](auto& norm) {
      norms_.push_back({.module = module,
                        .options = &norm.options,
                        .mean = &norm.running_mean,
                        .variance = &norm.running_var,
                        .batches = &norm.num_batches_tracked});
    };
    use_if<torch::nn::BatchNorm2dImpl>(*module, keep) ||
        use_if<torch::nn::BatchNorm1dImpl>(*module, keep) ||
        use_if<torch::nn::BatchNorm3dImpl>(*module, keep);
  }
}

// Adds the statistics that torch left in the module: with momentum 1, those of its last input.
void DeferredBatchNorm::Norm::add(double values) {
  const at::NoGradGuard no_grad;
  const at::Tensor new_mean = mean->to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor new_squares = variance->to(at::kDouble) * (values - 1);
  if (count == 0) {
    seen_mean = new_mean;
    seen_squares = new_squares;
  } else {
    const at::Tensor apart = new_mean - seen_mean;
    const double all = count + values;
    seen_mean = seen_mean + apart * (values / all);
    seen_squares = seen_squares + new_squares + apart.square() * (count * values / all);
  }
  count += values;
}

void DeferredBatchNorm::commit() {
  const at::NoGradGuard no_grad;
  for (Norm& norm : norms_) {
    if (norm.count == 0) continue;
    const auto& momentum = norm.options->momentum();
    const at::Tensor batches = *norm.batches + 1;
    const at::Tensor share = momentum
                                 ? at::full_like(norm.seen_mean, *momentum)
                                 : batches.to(at::kDouble).reciprocal().expand_as(norm.seen_mean);
    const auto move = [&](const at::Tensor& statistic, const at::Tensor& value) {
      write(statistic, statistic.to(at::kDouble) * (1 - share) + value * share);
    };
    move(*norm.mean, norm.seen_mean);
    move(*norm.variance, norm.seen_squares / std::max(norm.count - 1, 1.0));
    write(*norm.batches, batches);
    norm.count = 0;
    norm.seen_mean = norm.seen_squares = at::Tensor();
  }
}

// torch calls these around every operator of the thread.
struct DeferredBatchNorm::Watch::Callbacks {
  static thread_local Watch* current;  // torch passes no user data to callbacks

  static Norm* find(const at::Tensor& mean) {
    for (const Watch* watch = current; watch != nullptr; watch = watch->outer_) {
      for (const Watched& each : watch->watched_) {
        if (mean.is_same(*each.norm->mean)) return each.norm;
      }
    }
    return nullptr;
  }

  struct Call : at::ObserverContext {
    Norm* norm = nullptr;
    double values = 0;
  };

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& operation) {
    if (std::strcmp(operation.name(), "aten::batch_norm") != 0) return nullptr;
    const auto inputs = operation.inputs();  // input, weight, bias, mean, variance, training, ...
    if (inputs.size() < 6 || !inputs[3].isTensor() || !inputs[5].toBool()) return nullptr;
    Norm* const norm = find(inputs[3].toTensor());
    if (norm == nullptr) return nullptr;
    auto call = std::make_unique<Call>();
    const at::Tensor& input = inputs[0].toTensor();
    call->norm = norm;
    call->values = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
    const at::NoGradGuard no_grad;  // 0 x infinity would not be 0
    norm->mean->variable_data().zero_();
    norm->variance->variable_data().zero_();
    return call;
  }

  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (const auto* call = static_cast<Call*>(context)) call->norm->add(call->values);
  }
};

thread_local DeferredBatchNorm::Watch* DeferredBatchNorm::Watch::Callbacks::current = nullptr;

DeferredBatchNorm::Watch::Watch(DeferredBatchNorm& norms) {
  std::vector<at::Tensor> buffers;
  for (Norm& norm : norms.norms_) {
    if (!norm.module->is_training() || !norm.mean->defined()) continue;
    watched_.push_back({&norm, norm.options->momentum()});
    buffers.insert(buffers.end(), {*norm.mean, *norm.variance, *norm.batches});
  }
  if (watched_.empty()) return;
  buffers_.emplace(std::move(buffers));
  for (const Watched& each : watched_) each.norm->options->momentum(1.0);
  outer_ = std::exchange(Callbacks::current, this);
  if (outer_ != nullptr) return;  // its callbacks serve this one too
  handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&Callbacks::start, &Callbacks::end)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

DeferredBatchNorm::Watch::~Watch() {
  if (watched_.empty()) return;
  Callbacks::current = outer_;
  for (const Watched& each : watched_) each.norm->options->momentum(each.momentum);
  if (handle_) at::removeCallback(*handle_);
}

}  // namespace trestle::nn
