// Compares level None with libtorch's own data parallelism: c10d::Reducer, the engine of
// DistributedDataParallel, over Gloo.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "tests/support/golden.h"
#include "trestle/comm/backends/gloo_backend.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/sharding/sharded.h"

namespace trestle {
namespace {

// A forward may skip head b. With `spare`, one layer is never used.
struct TwoHeadsImpl : torch::nn::Module {
  explicit TwoHeadsImpl(bool spare) {
    body = register_module("body", torch::nn::Linear(6, 12));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})));
    a = register_module("a", torch::nn::Linear(12, 3));
    b = register_module("b", torch::nn::Linear(12, 3));
    if (spare) register_module("spare", torch::nn::Linear(2, 2));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    std::uint64_t key = 0;
    for (auto& parameter : parameters())
      parameter.copy_(0.5 * golden::formula_doubles(parameter.sizes(), key++));
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    const at::Tensor y = torch::tanh(norm(body(x)));
    return both ? a(y) + b(y) : a(y);
  }
  torch::nn::Linear body{nullptr}, a{nullptr}, b{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

at::Tensor input_of(int step, int rank) {
  return golden::formula_doubles({3, 6}, static_cast<std::uint64_t>(50 + 10 * step + rank));
}

// The constructor's last arguments differ between versions of libtorch.
template <class Reducer, class... Arguments>
std::shared_ptr<Reducer> make_reducer(Arguments... arguments) {
  using Caps = std::vector<std::int64_t>;
  if constexpr (std::is_constructible_v<Reducer, Arguments..., bool, bool, Caps>) {
    return std::make_shared<Reducer>(std::move(arguments)..., false, false, Caps{});
  } else if constexpr (std::is_constructible_v<Reducer, Arguments..., bool, bool>) {
    return std::make_shared<Reducer>(std::move(arguments)..., false, false);
  } else {
    return std::make_shared<Reducer>(std::move(arguments)...);
  }
}

// Does what DistributedDataParallel does in Python, as far as gradients go.
class Theirs {
 public:
  Theirs(const c10::intrusive_ptr<c10d::Store>& store, const World& world, bool find_unused)
      : net(find_unused), gloo_("127.0.0.1") {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank(), world.size());
    group->setDefaultBackend(c10d::ProcessGroup::GLOO);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::GLOO,
                      gloo_.connect(store, world.rank(), world.size(), std::chrono::seconds(20)));
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& item : net.named_parameters()) names.emplace(names.size(), item.key());
    const auto parameters = net.parameters();
    auto buckets =
        std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {std::size_t{256}}));
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = make_reducer<c10d::Reducer>(
        parameters, buckets, group, std::vector<bool>(parameters.size(), false), std::int64_t{512},
        find_unused,
        /*gradient_as_bucket_view=*/false, names, std::int64_t{256});
    // the reducer queries its logger about unused parameters
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
  }

  void step(const at::Tensor& x, bool both) {
    net.zero_grad();
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    const at::Tensor y = net.forward(x, both);
    reducer_->prepare_for_backward({y});
    y.square().mean().backward();
  }

  TwoHeadsImpl net;

 private:
  comm::GlooDevice gloo_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

// `used(step, rank)` tells whether a rank's forward runs both heads.
template <class Used>
void compare_with_reducer(int ranks, bool find, const Used& used) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  spawn(ranks, [&](World& world) {
    Theirs theirs(store, world, find);
    const DeviceMesh mesh(world, {{"replicate", ranks}});
    const auto own = std::make_shared<TwoHeadsImpl>(find);
    ShardedModule<TwoHeadsImpl> ours(
        own, mesh,
        {.unused_parameters = find ? UnusedParameters::Find : UnusedParameters::Refuse,
         .buckets = {.size = 512, .first = 256}});
    for (int step = 0; step < 4; ++step) {
      const bool both = used(step, world.rank());
      theirs.step(input_of(step, world.rank()), both);
      own->zero_grad();
      ours.forward(input_of(step, world.rank()), both).square().mean().backward();
      for (const auto& item : theirs.net.named_parameters()) {
        const at::Tensor expected = item.value().grad();
        const at::Tensor actual = own->named_parameters()[item.key()].grad();
        ASSERT_EQ(expected.defined(), actual.defined()) << item.key() << ", step " << step;
        if (!expected.defined()) continue;
        // Gloo's order of additions differs; a sum of two numbers has only one order.
        EXPECT_LE((actual - expected).abs().max().item<double>(), ranks == 2 ? 0 : 1e-15)
            << item.key();
      }
    }
  });
}

class C10dReducer : public ::testing::TestWithParam<int> {};

TEST_P(C10dReducer, GivesSameGradients) {
  compare_with_reducer(GetParam(), false, [](int, int) { return true; });
}
TEST_P(C10dReducer, GivesSameGradientsWithUnusedParameters) {
  compare_with_reducer(GetParam(), true,
                       [](int step, int rank) { return step % 2 == 0 || rank == 1; });
}

INSTANTIATE_TEST_SUITE_P(Ranks, C10dReducer, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace trestle
