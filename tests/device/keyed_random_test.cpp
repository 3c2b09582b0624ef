#include "trestle/device/keyed_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "support.h"

namespace trestle {
namespace {

using testing::on_virtual;
using testing::same_bits;
using testing::virtual_device;

// The numbers of the CPU's default generator.
at::Tensor after_seed(std::uint64_t seed, const std::function<at::Tensor(at::Device)>& draw) {
  torch::manual_seed(seed);
  return draw(at::kCPU);
}

struct RandomOperator {
  const char* name;
  at::Tensor (*draw)(at::Device);
};
void PrintTo(const RandomOperator& value, std::ostream* out) { *out << value.name; }

class RandomOperatorTest : public ::testing::TestWithParam<RandomOperator> {};

TEST_P(RandomOperatorTest, DrawsTheKeyedNumbersOnEveryDevice) {
  const auto expected = after_seed(42, GetParam().draw);
  for (const at::Device device : {at::Device(at::kCPU), virtual_device(0), virtual_device(3)}) {
    torch::manual_seed(1);
    const KeyedRandom random(device, 42);
    const auto drawn = GetParam().draw(device);
    EXPECT_EQ(drawn.device(), device);
    EXPECT_TRUE(same_bits(drawn, expected)) << device;
  }
}

const RandomOperator random_operators[] = {
    {"rand", [](at::Device d) { return torch::rand({1000}, d); }},
    {"randn", [](at::Device d) { return torch::randn({1000}, d); }},
    {"randn_small",
     [](at::Device d) {
       return torch::cat({torch::randn({3}, d), torch::randn({3}, d)});
     }},
    {"rand_like",
     [](at::Device d) {
       return torch::rand_like(torch::empty({7, 9}, d));
     }},
    {"randn_double",
     [](at::Device d) {
       return torch::randn({50}, at::TensorOptions().device(d).dtype(at::kDouble));
     }},
    {"randint", [](at::Device d) { return torch::randint(0, 100, {1000}, d); }},
    {"randperm", [](at::Device d) { return torch::randperm(1000, d); }},
    {"bernoulli", [](at::Device d) { return torch::bernoulli(torch::full({1000}, 0.3, d)); }},
    {"bernoulli_", [](at::Device d) { return torch::empty({1000}, d).bernoulli_(0.3); }},
    {"normal_", [](at::Device d) { return torch::empty({1000}, d).normal_(1, 2); }},
    {"normal", [](at::Device d) { return at::normal(torch::zeros({100}, d), 2.0); }},
    {"uniform_", [](at::Device d) { return torch::empty({1000}, d).uniform_(-1, 1); }},
    {"exponential_", [](at::Device d) { return torch::empty({1000}, d).exponential_(); }},
    {"random_", [](at::Device d) { return torch::empty({1000}, d).random_(0, 17); }},
    {"log_normal_", [](at::Device d) { return torch::empty({100}, d).log_normal_(); }},
    {"cauchy_", [](at::Device d) { return torch::empty({100}, d).cauchy_(); }},
    {"geometric_", [](at::Device d) { return torch::empty({100}, d).geometric_(0.2); }},
    {"multinomial", [](at::Device d) { return torch::multinomial(torch::ones({50}, d), 20); }},
    {"poisson", [](at::Device d) { return torch::poisson(torch::full({100}, 3.0, d)); }},
    {"dropout", [](at::Device d) { return torch::dropout(torch::ones({1000}, d), 0.4, true); }},
    {"native_dropout",
     [](at::Device d) {
       return std::get<0>(torch::native_dropout(torch::ones({1000}, d), 0.4, true));
     }},
    {"dropout_module",
     [](at::Device d) { return torch::nn::Dropout(0.1)(torch::ones({1000}, d)); }},
    {"dropout_in_place",
     [](at::Device d) {
       auto tensor = torch::ones({1000}, d);
       torch::dropout_(tensor, 0.4, true);
       return tensor;
     }},
    {"dropout_channels",
     [](at::Device d) {
       return torch::nn::Dropout2d(0.4)(torch::ones({2, 50, 3, 3}, d));
     }},
    {"alpha_dropout",
     [](at::Device d) { return torch::alpha_dropout(torch::ones({1000}, d), 0.4, true); }},
    {"rrelu", [](at::Device d) { return torch::rrelu(-torch::ones({1000}, d), 0.1, 0.3, true); }},
};
INSTANTIATE_TEST_SUITE_P(Every, RandomOperatorTest, ::testing::ValuesIn(random_operators),
                         [](const auto& info) { return info.param.name; });

at::Tensor draw(at::Device device) { return torch::rand({100}, device); }

class KeyedRandomTest : public ::testing::TestWithParam<const char*> {
 protected:
  at::Device device() const {
    virtual_device(0);
    return at::Device(GetParam());
  }
};

TEST_P(KeyedRandomTest, TheInnerScopeWinsAndTheOuterContinues) {
  const auto expected_inner = after_seed(2, draw);
  const auto expected_first = after_seed(1, draw);
  const auto expected_second = draw(at::kCPU);
  const KeyedRandom outer(device(), 1);
  EXPECT_TRUE(same_bits(draw(device()), expected_first));
  {
    const KeyedRandom inner(device(), 2);
    EXPECT_TRUE(same_bits(draw(device()), expected_inner));
  }
  EXPECT_TRUE(same_bits(draw(device()), expected_second));
}

TEST_P(KeyedRandomTest, LeavesTheDefaultGeneratorAlone) {
  const at::Device here = device();  // first: a seed reaches only devices that exist
  torch::manual_seed(5);
  draw(here);
  const auto expected = draw(here);
  torch::manual_seed(5);
  draw(here);
  {
    const KeyedRandom random(here, 9);
    draw(here);
  }
  EXPECT_TRUE(same_bits(draw(here), expected));
}

TEST_P(KeyedRandomTest, ThreadsOnOneDeviceDoNotDisturbEachOther) {
  constexpr std::uint64_t thread_count = 4;
  std::atomic<int> wrong{0};
  std::vector<at::Tensor> expected;
  for (std::uint64_t i = 0; i < thread_count; ++i) {
    expected.push_back(after_seed(
        i, [](at::Device d) { return torch::dropout(torch::ones({500}, d), 0.5, true); }));
  }
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        const KeyedRandom random(device(), i);
        if (!same_bits(torch::dropout(torch::ones({500}, device()), 0.5, true), expected[i]))
          ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(KeyedRandomTest, AGivenGeneratorIsUsed) {
  const auto expected = after_seed(8, draw);
  const KeyedRandom random(device(), 3);
  auto generator = at::detail::createCPUGenerator(8);
  EXPECT_TRUE(same_bits(torch::rand({100}, generator, device()), expected));
}

TEST_P(KeyedRandomTest, ABackwardInsideTheScopeWorks) {
  at::Tensor leaf = torch::ones({8}, at::TensorOptions().device(device()).requires_grad(true)),
             output;
  {
    const KeyedRandom random(device(), 3);
    output = torch::dropout(leaf, 0.5, true);
    output.sum().backward();
  }
  EXPECT_TRUE(same_bits(leaf.grad(), output));
}

INSTANTIATE_TEST_SUITE_P(
    Devices, KeyedRandomTest, ::testing::Values("cpu", "virtual:1"), [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find(':'));
    });

TEST(KeyedRandomTest, DropoutEqualsTheCpusForEveryRate) {
  for (const double rate : {0.05, 0.1, 0.2, 0.3, 0.37, 0.5, 0.7, 0.9, 1.0}) {
    at::Tensor outputs[2], gradients[2];
    int i = 0;
    for (const at::Device device : {at::Device(at::kCPU), virtual_device(0)}) {
      torch::manual_seed(4);
      auto leaf = torch::randn({512}).to(device).requires_grad_();
      const KeyedRandom random(device, 6);
      outputs[i] = torch::dropout(leaf, rate, true);
      (outputs[i] * outputs[i]).sum().backward();
      gradients[i++] = leaf.grad();
    }
    EXPECT_TRUE(same_bits(outputs[0], outputs[1])) << rate;
    EXPECT_TRUE(same_bits(gradients[0], gradients[1])) << rate;
  }
}

TEST(KeyedRandomTest, DevicesAreSeparate) {
  const KeyedRandom first(virtual_device(0), 1);
  const KeyedRandom second(virtual_device(1), 1);
  EXPECT_TRUE(same_bits(draw(virtual_device(0)), draw(virtual_device(1))));
}

TEST(KeyedRandomTest, AVirtualDevicesDefaultGeneratorFollowsManualSeed) {
  virtual_device(0);
  torch::manual_seed(12);
  const auto first = draw(virtual_device(0));
  torch::manual_seed(12);
  EXPECT_TRUE(same_bits(first, draw(virtual_device(0))));
}

TEST(KeyedRandomTest, AVirtualGeneratorCanBeGivenSavedAndCloned) {
  auto generator = at::globalContext().defaultGenerator(virtual_device(0)).clone();
  generator.set_current_seed(5);
  const auto state = generator.get_state();
  const auto first = torch::rand({4}, generator, virtual_device(0));
  generator.set_state(state);
  EXPECT_TRUE(same_bits(first, torch::rand({4}, generator, virtual_device(0))));
  EXPECT_TRUE(same_bits(first, after_seed(5, [](at::Device d) { return torch::rand({4}, d); })));
  EXPECT_EQ(generator.current_seed(), 5U);
}

TEST(KeyedRandomTest, AScopeOfADeviceKeysTheCpuTooWithTheSameNumbers) {
  const auto draws = [](at::Device device) {
    const KeyedRandom random(device, 9);
    const at::Tensor first = draw(device);
    return std::vector{first.cpu(), draw(at::kCPU), draw(device).cpu()};
  };
  const auto on_cpu = draws(at::kCPU);
  const auto on_device = draws(virtual_device(0));
  for (std::size_t i = 0; i < on_cpu.size(); ++i)
    EXPECT_TRUE(same_bits(on_cpu[i], on_device[i])) << i;
}

// Keyed randomness uses a dispatch key that libtorch reserves for its own tests. Only the kernels
// that this library registers may be on it.
TEST(LibtorchSmoke, TheDispatchKeyOfKeyedRandomIsUnused) {
  const KeyedRandom random(at::kCPU, 1);  // registers the kernels
  auto& dispatcher = c10::Dispatcher::singleton();
  int ours = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::TESTING_ONLY_GenericMode)) continue;
    ++ours;
    bool takes_generator = false;
    for (const auto& argument : op->schema().arguments())
      takes_generator |= argument.type()->str().find("Generator") != std::string::npos;
    EXPECT_TRUE(takes_generator) << toString(name);
  }
  EXPECT_GT(ours, 20);
}

}  // namespace
}  // namespace trestle
