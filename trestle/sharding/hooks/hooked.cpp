#include "trestle/sharding/hooks/hooked.h"

#include <ATen/core/grad_mode.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {

void detail::copy_module(const torch::nn::Module& from, torch::nn::Module& to,
                         const std::optional<at::Device>& device) {
  const at::NoGradGuard no_grad;
  const auto copy = [&](const auto& tensors, auto copies) {
    if (tensors.size() != copies.size())
      throw UsageError(text("a copy of ", from.name(), " has other parameters and buffers"),
                       {.hint = "Register them in reset(), as torch::nn::Cloneable requires."});
    for (const auto& item : tensors) {
      at::Tensor& own = copies[item.key()];
      own.set_data(device ? item.value().to(*device, item.value().scalar_type(), false, true)
                          : item.value().clone());
      own.set_requires_grad(item.value().requires_grad());
    }
  };
  copy(from.named_parameters(), to.named_parameters());
  copy(from.named_buffers(), to.named_buffers());
  const auto modules = from.modules();
  const auto copies = to.modules();
  for (std::size_t i = 0; i < copies.size() && i < modules.size(); ++i)
    if (modules[i]->is_training() != copies[i]->is_training())
      copies[i]->train(modules[i]->is_training());
}

}  // namespace trestle::sharding
