#include "trestle/recompute/checkpoint.h"

#include <ATen/autocast_mode.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/recompute/same_as_plain.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/device/device.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/recompute/recomputing.h"

namespace trestle {
namespace {

TEST(CheckpointState, AnotherNumberOfSavedTensorsIsAnError) {
  for (const int more : {-1, 1}) {
    int runs = 0;
    const auto body = [&](Tensor a) {
      const int times = 3 + (++runs > 1 ? more : 0);
      for (int i = 0; i < times; ++i) a = a.sin();
      return a;
    };
    const Tensor y = checkpoint({.early_stop = false}, body, leaf({4})).sum();
    const std::string error = error_of<StateError>([&] { y.backward(); });
    EXPECT_THAT(error, HasSubstr(more < 0 ? "saves 2 tensors in its recomputation, but saved 3"
                                          : "saves more tensors in its recomputation than the 3"));
    EXPECT_THAT(error,
                HasSubstr(more < 0 ? "tensor 2, [4] Float on cpu, is missing" : "tensor 3 is [4]"));
  }
}

TEST(CheckpointState, AnotherShapeOrTypeIsAnErrorWithTheTensorsNumber) {
  int runs = 0;
  const auto shape = [&](Tensor a) {
    a = a.sin();
    return (++runs > 1 ? a.narrow(0, 0, 2) : a).exp().sum();
  };
  const Tensor y = checkpoint(shape, leaf({4}));
  EXPECT_THAT(error_of<StateError>([&] { y.backward(); }),
              HasSubstr("tensor 1 that a checkpointed function saves is [2] Float on cpu in its "
                        "recomputation, but was [4] Float on cpu in its forward"));
  runs = 0;
  const auto type = [&](Tensor a) {
    return (++runs > 1 ? a.to(at::kDouble) : a).sin().exp().sum();
  };
  const Tensor z = checkpoint(type, leaf({4}));
  EXPECT_THAT(error_of<StateError>([&] { z.backward(); }), HasSubstr("tensor 0 that")) << runs;
}

TEST(CheckpointState, MoreRandomNumbersThanInTheForwardIsAnError) {
  int runs = 0;
  const auto body = [&](Tensor a) {
    if (++runs > 1) (void)at::rand({2});
    return at::dropout(a, 0.5, true).sin();
  };
  const Tensor y = checkpoint({.early_stop = false}, body, leaf({4})).sum();
  EXPECT_THAT(error_of<StateError>([&] { y.backward(); }),
              HasSubstr("drew them 1 times in its forward"));
}

TEST(CheckpointState, AnExceptionInsideLeavesEverythingValid) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  EXPECT_THROW(checkpoint([](Tensor a) -> Tensor { throw std::out_of_range("mine"); }, x),
               std::out_of_range);
  int runs = 0;
  const auto fails_once = [&](Tensor a) {
    a = at::dropout(net->forward(a), 0.5, true);
    if (++runs == 2) throw std::out_of_range("mine");
    return a.exp().sum();
  };
  const Tensor y = checkpoint(fails_once, x);
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THAT(error_of<std::out_of_range>([&] { y.backward({}, true); }),
              HasSubstr("while recomputing a checkpointed function for its backward"));
  EXPECT_TRUE(at::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
  EXPECT_FALSE(recompute::recomputing());
  EXPECT_EQ(nn::checkpointing(), nn::Checkpointing::None);
  x.mutable_grad() = Tensor();
  y.backward();
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(x.grad().defined());
  const auto plain = outcome([&](Tensor a) { return net->forward(a).sum(); }, x, net->parameters());
  expect_equal(plain,
               outcome([&](Tensor a) { return checkpoint(net, a).sum(); }, x, net->parameters()));
}

TEST(CheckpointState, AutocastIsRestored) {
  auto net = small_net(16);
  const Tensor x = leaf({8, 16});
  const auto loss = [&](bool with, Tensor a) {
    Tensor y;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    y = with ? checkpoint(net, a) : net->forward(a);
    y = y + net->forward(a);  // uses the same weights' casts, outside
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return y.to(at::kFloat).square().sum();
  };
  expect_equal(outcome([&](Tensor a) { return loss(false, a); }, x, net->parameters()),
               outcome([&](Tensor a) { return loss(true, a); }, x, net->parameters()));
  // No cast of the recomputation remains for a forward after a step.
  const auto step = [&](bool with) {
    auto own = small_net(16);
    torch::optim::SGD optimizer(own->parameters(), 0.5);
    Tensor value;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    for (int i = 0; i < 2; ++i) {
      at::autocast::clear_cache();
      value = (with ? checkpoint(own, x) : own->forward(x)).to(at::kFloat).square().mean();
      optimizer.zero_grad();
      value.backward();
      optimizer.step();
    }
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return value.item<double>();
  };
  EXPECT_EQ(step(false), step(true));
}

Bytes peak_of(const std::function<Tensor(Tensor)>& run, at::Device device) {
  const Tensor x = at::ones({256, 64}, device).requires_grad_();
  reset_peak_memory(device);
  const Bytes before = memory_usage(device).current;
  run(x).sum().backward();
  EXPECT_LE(memory_usage(device).current - before, static_cast<Bytes>(x.nbytes()) + 1024)
      << "leaked";
  return memory_usage(device).peak - before;
}

TEST(CheckpointState, PeakMemoryFallsAndIsFreedEarly) {
  const at::Device device("virtual:3");
  const auto deep = [](Tensor a) {
    for (int i = 0; i < 16; ++i) a = a.sin();
    return a;
  };
  const Bytes plain = peak_of(deep, device);
  const Bytes ours = peak_of(
      [&](Tensor a) {
        for (int i = 0; i < 4; ++i)
          a = checkpoint([](Tensor b) { return b.sin().sin().sin().sin(); }, a);
        return a;
      },
      device);
  EXPECT_GE(plain, 16 * 65536);
  EXPECT_LE(ours, 12 * 65536);
  // A backward that needs only some of the recomputed tensors frees all of them.
  const Tensor x = at::ones({256, 64}, device).requires_grad_();
  const Tensor w = at::ones({256, 64}, device).requires_grad_();
  const Tensor y =
      checkpoint([](Tensor a, Tensor b) { return a.sin().sin() + b.sin().sin().sin().sin(); }, x, w)
          .sum();
  const Bytes held = memory_usage(device).current;
  (void)torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true);
  // The device's backward thread frees its last gradients a moment later.
  for (int i = 0; i < 1000 && memory_usage(device).current > held; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(memory_usage(device).current, held);
}

TEST(CheckpointState, BatchNormCountsABatchOnce) {
  const Tensor x = leaf({8, 3, 4, 4});
  const auto make = [] {
    torch::manual_seed(1);
    return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                                 torch::nn::ReLU());
  };
  const auto state = [](torch::nn::Sequential net) {
    Tensors all;
    for (const auto& buffer : net->buffers()) all.push_back(buffer.clone());
    return all;
  };
  auto plain = make(), module = make(), closure = make(), named = make(), nested = make();
  const auto run = [&](torch::nn::Sequential net, const std::function<Tensor(Tensor)>& f) {
    Tensors result;
    for (int i = 0; i < 2; ++i) {
      auto one = outcome([&](Tensor a) { return f(a).square().sum(); }, x, net->parameters());
      result.insert(result.end(), one.begin(), one.end());
    }
    for (const Tensor& buffer : state(net)) result.push_back(buffer);
    return result;
  };
  const auto expected = run(plain, [&](Tensor a) { return plain->forward(a); });
  expect_equal(expected, run(module, [&](Tensor a) { return checkpoint(module, a); }));
  expect_equal(expected, run(closure, [&](Tensor a) {
                 return checkpoint([&](Tensor b) { return closure->forward(b); }, a);
               }));
  expect_equal(expected, run(named, [&](Tensor a) {
                 return checkpoint(
                     {.early_stop = false, .modules = {named.ptr()}},
                     [&](Tensor b) { return named->forward(b); }, a);
               }));
  expect_equal(expected, run(nested, [&](Tensor a) {
                 return checkpoint([&](Tensor b) { return checkpoint(nested, b); }, a);
               }));
}

// Spectral norm and moving averages do this.
TEST(CheckpointState, AFunctionThatReadsTheStateItUpdates) {
  const Tensor x = leaf({4});
  Tensors results[2];
  for (const bool with : {false, true}) {
    const Tensor state = at::full({4}, 0.5);
    const auto body = [&](Tensor a) {
      {
        const at::NoGradGuard no_grad;
        state.narrow(0, 1, 2).add_(1);  // a temporary view
        state.mul_(0.5).add_(a * 0.5);
        state[3].fill_(2);
      }
      return (a * state).tanh();
    };
    results[with ? 1 : 0] =
        outcome([&](Tensor a) { return with ? checkpoint(body, a).sum() : body(a).sum(); }, x, {});
    results[with ? 1 : 0].push_back(state);
  }
  expect_equal(results[0], results[1]);
}

// Operators that write to an argument named `out`, and to lists.
TEST(CheckpointState, AFunctionThatUpdatesThroughOutAndLists) {
  const Tensor x = leaf({4});
  Tensors results[2];
  for (const bool with : {false, true}) {
    Tensor sum = at::full({4}, 0.5);
    const Tensor one = at::ones({4}), two = at::ones({4});
    const auto body = [&](Tensor a) {
      {
        const at::NoGradGuard no_grad;
        at::add_out(sum, sum, a);
        at::_foreach_mul_({one, two}, 1.5);
      }
      return (a * (sum + one * two)).tanh();
    };
    results[with ? 1 : 0] =
        outcome([&](Tensor a) { return with ? checkpoint(body, a).sum() : body(a).sum(); }, x, {});
    for (const Tensor& state : {sum, one, two}) results[with ? 1 : 0].push_back(state);
  }
  expect_equal(results[0], results[1]);
}

TEST(CheckpointState, ModesAndBuffersAreThoseOfTheFirstForward) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                            torch::nn::Dropout(0.5));
  const Tensor x = leaf({8, 4});
  net->eval();
  const auto plain =
      outcome([&](Tensor a) { return net->forward(a).square().sum(); }, x, net->parameters());
  expect_equal(
      plain,
      outcome(
          [&](Tensor a) {
            const Tensor y = checkpoint(net, a).square().sum();
            net->train();  // so its statistics change
            const at::NoGradGuard no_grad;
            const Tensor before = net[1]->as<torch::nn::BatchNorm1d>()->running_mean.clone();
            const auto state = at::detail::getDefaultCPUGenerator().get_state();
            net->forward(at::ones({4, 4}));
            at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl()->set_state(
                *state.unsafeGetTensorImpl());
            EXPECT_FALSE(at::equal(before, net[1]->as<torch::nn::BatchNorm1d>()->running_mean));
            return y;
          },
          x, net->parameters()));
  EXPECT_TRUE(net->is_training());
}

TEST(CheckpointState, AChangedInputIsAnErrorNotAWrongNumber) {
  const Tensor x = at::randn({4});
  const Tensor w = leaf({4});
  const Tensor y = checkpoint([&](Tensor a) { return (a + w).relu().sum(); }, x);
  x.add_(1);
  EXPECT_THAT(error_of<StateError>([&] { y.backward(); }),
              HasSubstr("input 0 was changed in place"));
}

TEST(CheckpointState, AChangedParameterIsAnErrorEvenIfAutogradSavesNone) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  const auto change = [&](Tensor y) {
    {
      const at::NoGradGuard no_grad;
      net[2]->as<torch::nn::Linear>()->bias.add_(1);  // a bias is not saved
    }
    return error_of<StateError>([&] { y.sum().backward(); });
  };
  EXPECT_THAT(change(checkpoint(net, x)), HasSubstr("2.bias' was changed in place"));
  EXPECT_THAT(change(checkpoint([&](Tensor a) { return net->forward(a); }, x)),
              HasSubstr("a parameter of shape [8] was changed in place"));
  // The same for a constant that autograd would save.
  const Tensor mask = at::ones({4, 8});
  const Tensor y = checkpoint([&](Tensor a) { return (a * mask).tanh().sum(); }, x);
  mask.zero_();
  EXPECT_THAT(error_of<StateError>([&] { y.backward(); }), HasSubstr("tensor 0 that it saved"));
}

TEST(CheckpointState, AFunctionThatChangesAParameterItself) {
  const Tensor w = leaf({4});
  const auto body = [&](Tensor a) {
    {
      const at::NoGradGuard no_grad;
      w.clamp_(-0.5, 0.5);
    }
    return (a * w).exp().sum();
  };
  const Tensor x = leaf({4});
  const Tensor y = checkpoint(body, x);
  y.backward({}, true);
  y.backward();
  EXPECT_TRUE(at::allclose(x.grad(), 2 * w * (x * w).exp()));
}

TEST(CheckpointState, AFunctionThatWritesToItsInputIsRejectedOrGetsCopies) {
  const Tensor x = leaf({4});
  const auto body = [](Tensor a) { return a.relu_().exp().sum(); };
  EXPECT_THAT(error_of<UsageError>([&] { checkpoint(body, x * 2); }),
              HasSubstr("writes to its input 0"));
  const auto plain = outcome([&](Tensor a) { return body(a * 2); }, x, {});
  const auto ours = outcome(
      [&](Tensor a) {
        const Tensor doubled = a * 2;
        const Tensor y = checkpoint({.copy_inputs = true}, body, doubled);
        EXPECT_TRUE(at::equal(doubled, a * 2));
        return y;
      },
      x, {});
  expect_equal(plain, ours);
}

// The tensors that the function's threads save are kept; the calling thread's are recomputed.
TEST(CheckpointState, ThreadsOfTheFunctionGiveThePlainGradient) {
  const Tensor w = leaf({6, 6});
  const auto body = [w](const Tensor& a) {
    Tensor half;
    std::thread([&] { half = a.matmul(w).tanh(); }).join();
    return (half * a).exp().sum();
  };
  const Tensor x = leaf({6, 6});
  const auto plain = outcome(body, x, {w});
  const auto ours = outcome([&](const Tensor& a) { return checkpoint(body, a); }, x, {w});
  expect_equal(plain, ours);
}

TEST(CheckpointState, OtherRandomNumbersOfThreadsOrOfTheFunctionAreAnError) {
  const auto in_thread = [](const Tensor& a) {
    Tensor mask;
    std::thread([&] { mask = at::rand_like(a).gt(0.1).to(a.dtype()); }).join();
    return (a * mask).exp().sum();
  };
  int runs = 0;
  const auto counting = [&](const Tensor& a) { return (a * ++runs).exp().sum(); };
  for (const at::Device device : {at::Device(at::kCPU), virtual_devices(1)[0].torch}) {
    const Tensor x = leaf({8, 8}).detach().to(device).requires_grad_();
    const Tensor y = checkpoint(in_thread, x);
    EXPECT_THAT(error_of<StateError>([&] { y.backward(); }),
                AllOf(HasSubstr("has other values in its recomputation"),
                      HasSubstr("Threads that it starts draw other random numbers")));
    const Tensor z = checkpoint(counting, x);
    EXPECT_THAT(error_of<StateError>([&] { z.backward(); }), HasSubstr("has other values"));
    checkpoint({.keep_random = false}, in_thread, x).backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

TEST(CheckpointState, LayersCanQueryTheKindOfRun) {
  std::vector<nn::Checkpointing> seen;
  std::vector<bool> again;
  const auto body = [&](Tensor a) {
    seen.push_back(nn::checkpointing());
    again.push_back(recompute::recomputing());
    return a.sin();
  };
  const Tensor x = leaf({2});
  const Tensor y = checkpoint([&](Tensor a) { return checkpoint(body, body(a)); }, x);
  y.sum().backward();
  using enum nn::Checkpointing;
  // The outer function, then its recomputation for the inner one's input, then the inner one's.
  EXPECT_EQ(seen, (std::vector{First, First, Recompute, Recompute}));
  EXPECT_EQ(again, (std::vector<bool>{false, false, true, true}));
  EXPECT_FALSE(recompute::recomputing());
}

}  // namespace
}  // namespace trestle
