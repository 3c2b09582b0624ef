// Collectives and autograd.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "tests/comm/collective_checks.h"

namespace trestle::testing {

using comm::Group;

// Autograd must detect a collective's write to a tensor saved for a backward.
void check_writes_are_seen_by_autograd(World& world) {
  const Group& group = world.group();
  const int size = world.size(), root = size - 1;
  const std::vector<std::function<void(at::Tensor)>> writes = {
      [&](at::Tensor x) { group.broadcast(x, root).wait(); },
      [&](at::Tensor x) { group.all_reduce(x).wait(); },
      [&](at::Tensor x) { group.all_gather(x, torch::ones({2})).wait(); },
      [&](at::Tensor x) { group.reduce_scatter(x, torch::ones({2 * size * size})).wait(); },
      [&](at::Tensor x) { group.all_to_all(x, torch::ones({2 * size})).wait(); }};
  for (const auto& write : writes) {
    at::Tensor x = torch::ones({2 * size}), weight = torch::ones({2 * size}, at::requires_grad());
    const at::Tensor y = (x * weight).sum();
    const bool reads_only = &write == &writes[0] && world.rank() == root;
    write(x);
    if (reads_only) {
      EXPECT_NO_THROW(y.backward());
    } else {
      EXPECT_THROW(y.backward(), c10::Error);
    }
  }
}

// Tensors created and used inside InferenceMode, and used after it.
void check_inference_tensors(World& world) {
  const Group& group = world.group();
  const double size = world.size();
  at::Tensor x, gathered;
  {
    const c10::InferenceMode inference;
    x = torch::ones({3});
    gathered = torch::zeros({3 * world.size()});
    group.all_reduce(x).wait();
    group.all_gather(gathered, x).wait();
    EXPECT_TRUE(gathered.eq(size).all().item<bool>());
    EXPECT_EQ(group.all_gather_uneven(x).size(), static_cast<std::size_t>(world.size()));
  }
  group.all_reduce(x).wait();
  EXPECT_TRUE(x.eq(size * size).all().item<bool>());
  group.reduce_scatter(x, torch::ones({3 * world.size()})).wait();
  EXPECT_TRUE(x.eq(size).all().item<bool>());
  group.broadcast(gathered, 0).wait();
  EXPECT_TRUE(gathered.eq(size).all().item<bool>());
}

}  // namespace trestle::testing
