#include "trestle/sharding/reduce/bucket_hook.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

// The padding between gradients, which no other code writes to.
void zero_gaps(const at::Tensor& flat, const FlatLayout& layout, std::size_t count) {
  std::int64_t end = 0;
  const auto zero_until = [&](std::int64_t begin) {
    if (begin > end) flat.narrow(0, end, begin - end).zero_();
  };
  for (std::size_t i = 0; i < count; ++i) {
    zero_until(layout.offset(i));
    end = layout.offset(i) + layout.count(i);
  }
  zero_until(flat.numel());
}

}  // namespace

std::function<void()> BucketHook::begin(FlatParameterGroup& group, const Place& place) const {
  const at::NoGradGuard no_grad;
  zero_gaps(group.gradients(), group.layout(), group.size());
  GradientBucket bucket{.index = place.index,
                        .is_last = place.is_last,
                        .step = place.step,
                        .flat = group.gradients(),
                        .gradients = {},
                        .names = {},
                        .group = ranks_};
  for (std::size_t i = 0; i < group.size(); ++i) {
    bucket.gradients.push_back(group.gradient_view(i));
    bucket.names.push_back(group.name(i));
  }
  std::function<void()> wait;
  call_hook(place.index, [&] { wait = average_(bucket); });
  return wait;
}

void BucketHook::finish(int index, const std::function<void()>& wait) const {
  const at::NoGradGuard no_grad;
  if (wait) call_hook(index, wait);
}

void BucketHook::call_hook(int index, const std::function<void()>& call) const {
  try {
    call();
  } catch (const std::exception& error) {
    ranks_.fail(text("communication hook '", name_, "', bucket ", index, ": ", error.what()));
    throw;
  }
}

}  // namespace trestle::sharding
