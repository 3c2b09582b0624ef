#include "trestle/recompute/checkpoint.h"

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "tests/recompute/same_as_plain.h"
#include "trestle/base/error.h"
#include "trestle/device/keyed_random.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/recompute/install.h"
#include "trestle/recompute/recomputing.h"

namespace trestle {
namespace {

struct Threads : testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
auto* const one_thread = testing::AddGlobalTestEnvironment(new Threads);

TEST(Checkpoint, GradientsEqualThePlainCalls) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  const auto plain =
      outcome([&](Tensor a) { return net->forward(a).square().sum(); }, x, net->parameters());
  int runs = 0;
  const auto counted = [&](Tensor a) {
    ++runs;
    return net->forward(a);
  };
  expect_equal(plain, outcome([&](Tensor a) { return checkpoint(counted, a).square().sum(); }, x,
                              net->parameters()));
  EXPECT_EQ(runs, 2);  // forward runs exactly twice
  expect_equal(plain, outcome([&](Tensor a) { return checkpoint(net, a).square().sum(); }, x,
                              net->parameters()));
  expect_equal(plain, outcome([&](Tensor a) { return checkpoint(net.ptr(), a).square().sum(); }, x,
                              net->parameters()));
  expect_equal(plain,
               outcome(
                   [&](Tensor a) {
                     return checkpoint(
                                {.early_stop = false, .keep_random = false, .modules = {net.ptr()}},
                                counted, a)
                         .square()
                         .sum();
                   },
                   x, net->parameters()));
}

TEST(Checkpoint, WithoutGradientsItIsThePlainCall) {
  auto net = small_net();
  int runs = 0;
  {
    const at::NoGradGuard no_grad;
    const Tensor y = checkpoint(
        [&](Tensor a) {
          ++runs;
          return net->forward(a);
        },
        leaf({4, 8}));
    EXPECT_FALSE(y.requires_grad());
  }
  const c10::InferenceMode inference;
  EXPECT_EQ(checkpoint([](Tensor a) { return a + 1; }, at::ones({2})).sum().item<double>(), 4);
  EXPECT_EQ(runs, 1);
}

TEST(Checkpoint, DropoutRepeatsItsMask) {
  auto net = small_net();
  const Tensor x = leaf({16, 8});
  const auto drop = [&](Tensor a) {
    a = at::dropout(net->forward(a), 0.5, true);
    a = a + at::randn({3}).sum() + at::randn({64}).sum();
    a = a + at::rand_like(a).bernoulli_(0.5, at::detail::getDefaultCPUGenerator());
    return at::dropout(a, 0.3, true);
  };
  const auto plain =
      outcome([&](Tensor a) { return (drop(a) * at::rand_like(a)).sum(); }, x, net->parameters());
  expect_equal(plain,
               outcome([&](Tensor a) { return (checkpoint(drop, a) * at::rand_like(a)).sum(); }, x,
                       net->parameters()));
  // Without keep_random the backward advances the global generator; with it, it does not.
  const Tensor y = checkpoint({.keep_random = false}, drop, x);
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  y.sum().backward();
  EXPECT_FALSE(at::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
  const Tensor z = checkpoint(drop, x);
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  z.sum().backward();
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(Checkpoint, DropoutRepeatsItsMaskOnVirtualDevicesAndKeyed) {
  for (const at::Device device :
       {at::Device("cpu"), at::Device("virtual:1"), at::Device("virtual:2")}) {
    for (const bool keyed : {false, true}) {
      const Tensor x = at::ones({32, 32}, device).requires_grad_();
      Tensor y;
      {
        std::optional<KeyedRandom> random;
        if (keyed) random.emplace(device, 5);
        y = checkpoint([](Tensor a) { return at::dropout(at::dropout(a, 0.5, true), 0.2, true); },
                       x);
      }
      at::dropout(at::ones({9}, device), 0.5, true);
      y.sum().backward();
      EXPECT_TRUE(at::equal(x.grad().cpu(), y.detach().cpu())) << device;
    }
  }
}

// A given default generator of a device or of the process is used, even within a keyed scope.
TEST(Checkpoint, GivenDefaultGeneratorsAreUsed) {
  for (const at::Device device : {at::Device("cpu"), at::Device("virtual:1")}) {
    const auto generator = at::globalContext().defaultGenerator(device);
    Tensors results[2];
    for (const bool with : {false, true}) {
      at::manual_seed(4);
      const KeyedRandom random(device, 5);
      const auto body = [&](Tensor a) {
        return a * at::empty_like(a).bernoulli_(0.5, generator) * at::rand_like(a);
      };
      const Tensor x = at::ones({32}, device).requires_grad_();
      const Tensor y = with ? checkpoint(body, x) : body(x);
      y.sum().backward();
      EXPECT_TRUE(at::equal(x.grad().cpu(), y.detach().cpu())) << device;
      results[with ? 1 : 0] = {y.detach().cpu()};
    }
    expect_equal(results[0], results[1]);
  }
}

TEST(Checkpoint, ThreadsThatShareAGeneratorHaveTheirOwnMasks) {
  recompute::install();
  std::atomic<int> wrong = 0;
  const auto work = [&] {
    at::set_num_threads(1);
    for (int i = 0; i < 100; ++i) {
      const Tensor x = at::ones({64, 16}).requires_grad_();
      const Tensor y = checkpoint(
          [](Tensor a) {
            for (int k = 0; k < 3; ++k) a = at::dropout(a, 0.3, true);
            return a;
          },
          x);
      y.sum().backward();
      if (!at::equal(x.grad(), y.detach())) ++wrong;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Checkpoint, Nested) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  const auto once = [&](Tensor a) { return at::dropout(net->forward(a), 0.25, true); };
  const auto plain =
      outcome([&](Tensor a) { return once(once(once(a))).sum(); }, x, net->parameters());
  for (const bool early : {true, false}) {
    const nn::CheckpointOptions options{.early_stop = early};
    const auto nested = [&](Tensor a) {
      a = checkpoint(
          options,
          [&](Tensor b) {
            b = checkpoint(options, once, b);  // two nested calls, one of them with another inside
            return checkpoint(
                options, [&](Tensor c) { return checkpoint(options, once, c); }, b);
          },
          a);
      return once(a).sum();
    };
    expect_equal(plain, outcome(nested, x, net->parameters()));
  }
}

TEST(Checkpoint, TwoInOneGraphAndOneTwice) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  const auto plain = [&](Tensor a) {
    return (net->forward(a) * net->forward(net->forward(a) + a)).sum();
  };
  const auto ours = [&](Tensor a) {
    return (checkpoint(net, a) * checkpoint(net, checkpoint(net, a) + a)).sum();
  };
  expect_equal(outcome(plain, x, net->parameters()), outcome(ours, x, net->parameters()));
}

TEST(Checkpoint, ManyInputsAndOutputsOfAnyKind) {
  struct Both {
    Tensor a, b;
  };
  const Tensor w = leaf({4});
  const auto mixed = [](const Tensor& a, std::optional<Tensor> none, double factor,
                        const std::string& word, std::vector<Tensor> list,
                        std::map<std::string, Tensor> named, Tensor nothing) {
    EXPECT_FALSE(none.has_value());
    EXPECT_FALSE(nothing.defined());
    EXPECT_EQ(word, "word");
    return std::tuple(a.sin() * factor,
                      std::vector<Tensor>{list[0].cos(), list[1] * named.at("k").exp()}, 7);
  };
  const auto loss = [&](bool with, Tensor a) {
    std::map<std::string, Tensor> named = {{"k", w}};
    std::vector<Tensor> list = {a, at::arange(4)};
    const auto [first, others, number] =
        with ? checkpoint(mixed, a, std::optional<Tensor>(), 2.5, "word", list, named, Tensor())
             : mixed(a, std::nullopt, 2.5, "word", list, named, Tensor());
    return (first * others[0] + others[1]).sum() * number;
  };
  const Tensor x = leaf({4});
  expect_equal(outcome([&](Tensor a) { return loss(false, a); }, x, {w}),
               outcome([&](Tensor a) { return loss(true, a); }, x, {w}));
  // A user's type, and a function that takes references.
  const Both both = checkpoint(
      [](Tensor& a, int k) {
        a = a * k;
        return Both{a.sin(), a.cos()};
      },
      x, 2);
  (both.a + both.b).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), 2 * ((2 * x).cos() - (2 * x).sin())));
}

TEST(Checkpoint, NoInputRequiresAGradient) {
  auto net = small_net();
  const Tensor x = at::randn({4, 8});
  expect_equal(outcome([&](Tensor a) { return net->forward(a).sum(); }, x, net->parameters()),
               outcome([&](Tensor a) { return checkpoint(net, a).sum(); }, x, net->parameters()));
}

TEST(Checkpoint, DetachedAndPartialGradients) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  net[0]->as<torch::nn::Linear>()->weight.requires_grad_(false);
  const auto body = [&](Tensor a) {
    const Tensor fixed = net->forward(a).detach();
    return std::pair(net->forward(a) * fixed, fixed);
  };
  const auto loss = [&](bool with, Tensor a) {
    const auto [y, fixed] = with ? checkpoint(body, a) : body(a);
    EXPECT_FALSE(fixed.requires_grad());
    return (y + fixed).square().sum();
  };
  expect_equal(outcome([&](Tensor a) { return loss(false, a); }, x, net->parameters()),
               outcome([&](Tensor a) { return loss(true, a); }, x, net->parameters()));
}

TEST(Checkpoint, AParameterInsideAndOutside) {
  const Tensor w = leaf({8, 8});
  const Tensor x = leaf({4, 8});
  const auto body = [&](Tensor a) { return (a.mm(w)).tanh(); };
  const auto loss = [&](bool with, Tensor a) {
    return (with ? checkpoint(body, a.mm(w)) : body(a.mm(w))).mm(w).square().sum();
  };
  expect_equal(outcome([&](Tensor a) { return loss(false, a); }, x, {w}),
               outcome([&](Tensor a) { return loss(true, a); }, x, {w}));
}

TEST(Checkpoint, StopsEarlyUnlessDisabled) {
  const Tensor x = leaf({4});
  int ends = 0;
  const auto body = [&](Tensor a) {
    a = a.sin().exp();
    ++ends;
    return a + 1;
  };
  checkpoint(body, x).sum().backward();
  EXPECT_EQ(ends, 1);
  checkpoint({.early_stop = false}, body, x).sum().backward();
  EXPECT_EQ(ends, 3);
  // A function that catches the exception of the early stop is stopped again.
  int caught = 0;
  const auto catches = [&](Tensor a) {
    try {
      return a.sin().exp();
    } catch (const std::exception&) {
      ++caught;
    }
    return a.sin();
  };
  const Tensor fresh = leaf({4});
  checkpoint(catches, fresh).sum().backward();
  EXPECT_EQ(caught, 1);
  EXPECT_TRUE(at::allclose(fresh.grad(), fresh.cos() * fresh.sin().exp()));
}

TEST(Checkpoint, ASecondBackwardThroughAKeptGraph) {
  auto net = small_net();
  const Tensor x = leaf({4, 8});
  int runs = 0;
  const Tensor y = checkpoint(
                       [&](Tensor a) {
                         ++runs;
                         return net->forward(a);
                       },
                       x)
                       .square()
                       .sum();
  y.backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(at::equal(x.grad(), once * 2));
  EXPECT_EQ(runs, 3);
  EXPECT_THAT(error_of<c10::Error>([&] { y.backward(); }), HasSubstr("second time"));
}

TEST(Checkpoint, TheGradApiAndGradientsOfGradients) {
  auto net = torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::Tanh(),
                                   torch::nn::Linear(6, 6), torch::nn::Tanh());
  const Tensor x = leaf({3, 6});
  const auto penalty = [&](Tensor y) {
    const auto g =
        torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({g[0].square().sum()}, net->parameters());
  };
  auto expected = penalty(net->forward(x));
  expect_equal(expected, penalty(checkpoint(net, x)));
  expect_equal(expected, penalty(checkpoint([&](Tensor a) { return checkpoint(net, a); }, x)));
  // The gradient of one input only: the tensors for the other one are freed with the graph.
  const Tensor y = checkpoint([](Tensor a, Tensor b) { return a.sin() * b.exp(); }, x, x * 2);
  EXPECT_TRUE(at::allclose(torch::autograd::grad({y.sum()}, {x})[0],
                           x.cos() * (2 * x).exp() + 2 * x.sin() * (2 * x).exp()));
}

TEST(Checkpoint, ABackwardInsideOfTheFunction) {
  const Tensor x = leaf({4});
  const auto body = [](Tensor a) {
    const Tensor y = a.sin();
    const Tensor z = y.exp();
    const Tensor g = torch::autograd::grad({z.sum()}, {a}, {}, /*retain_graph=*/true)[0];
    return g * z.cos();
  };
  const auto plain = outcome([&](Tensor a) { return body(a * 1).sum(); }, x, {});
  for (const bool early : {true, false}) {
    expect_equal(
        plain,
        outcome([&](Tensor a) { return checkpoint({.early_stop = early}, body, a * 1).sum(); }, x,
                {}));
    // On a virtual device, whose backward thread recomputes the function and the backward inside.
    const Tensor there = x.detach().to(at::Device("virtual:1")).requires_grad_();
    checkpoint({.early_stop = early}, body, there * 1).sum().backward();
    EXPECT_TRUE(at::equal(there.grad().cpu(), plain[1]));
  }
}

// A gradient penalty: the backward inside builds a graph. In the first run a device's thread saves
// its tensors; in the recomputation the thread that recomputes does.
TEST(Checkpoint, AGraphOfABackwardInsideOfTheFunction) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device("virtual:1")}) {
    torch::nn::Linear linear(4, 4);
    linear->to(device);
    const auto body = [&](Tensor a) {
      const Tensor y = linear(a).tanh();
      const Tensor g = torch::autograd::grad({y.square().sum()}, {a}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true)[0];
      const Tensor z = linear((y + 0.1 * g).exp());
      return z.sin() * z;
    };
    const Tensor x = at::randn({3, 4}).to(device).requires_grad_();
    const auto gradients = [&](const Tensor& y) {
      return torch::autograd::grad({y.square().sum()}, {x, linear->weight, linear->bias});
    };
    const auto plain = gradients(body(x * 1));
    for (const bool keep_random : {true, false}) {
      const auto got = gradients(checkpoint({.keep_random = keep_random}, body, x * 1));
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(at::allclose(got[i].cpu(), plain[i].cpu())) << device << " " << i;
    }
  }
}

// Two devices with one autograd thread each: both need the results of one recomputation.
TEST(Checkpoint, AFunctionOverTwoDevices) {
  const at::Device a("virtual:0"), b("virtual:1");
  const Tensor x = at::randn({32, 32});
  const auto body = [&](Tensor t) {
    Tensor left = t, right = t.to(b);
    for (int i = 0; i < 8; ++i) {
      left = left.sin();
      right = right.cos();
    }
    return left + right.to(a);
  };
  std::atomic<int> runs = 0;
  for (int i = 0; i < 20; ++i) {
    const Tensor first = x.to(a).requires_grad_(), second = x.to(a).requires_grad_();
    body(first).sum().backward();
    runs = 0;
    checkpoint(
        [&](Tensor t) {
          ++runs;
          return body(t);
        },
        second)
        .sum()
        .backward();
    ASSERT_TRUE(at::equal(first.grad().cpu(), second.grad().cpu()));
    ASSERT_EQ(runs, 2);
  }
}

TEST(Checkpoint, SixtyDeep) {
  const Tensor x = leaf({2});
  std::function<Tensor(Tensor, int)> deep = [&](Tensor a, int depth) -> Tensor {
    if (depth == 0) return a.sin();
    return checkpoint([&deep, depth](Tensor b) { return deep(b, depth - 1); }, a) + 0;
  };
  deep(x, 60).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x.cos()));
}

}  // namespace
}  // namespace trestle
