#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/device/device.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/fused.h"
#include "trestle/optim/state.h"

namespace trestle::optim {
namespace {

using testing::HasSubstr;

nlohmann::json optimizer_goldens() {
  return nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/optim/optimizers.json"));
}

// The formula of tools/golden/formula.py.
at::Tensor formula(const std::vector<std::int64_t>& shape, std::uint64_t key) {
  at::Tensor tensor = at::empty(shape, at::kDouble);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::uint64_t x = (i * 2654435761U + ((key + 1) * 2246822519U & 0xffffffff)) & 0xffffffff;
    x ^= x >> 15;
    x = x * 2246822519U & 0xffffffff;
    x ^= x >> 13;
    x = x * 3266489917U & 0xffffffff;
    x ^= x >> 16;
    tensor.data_ptr<double>()[i] = static_cast<double>(x) / 2147483648.0 - 1.0;
  }
  return tensor.to(at::kFloat);
}

struct Trained {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  void steps(int from, int to) const {
    for (int step = from; step < to; ++step) {
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        parameters[k].mutable_grad() =
            formula(parameters[k].sizes().vec(), 100 * (step + 1) + k).to(parameters[k].device());
      }
      optimizer->step();
    }
  }
};

Trained make(const nlohmann::json& shapes, const OptimizerOptions& options) {
  Trained setup;
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    setup.parameters.push_back(formula(shapes[k], k).requires_grad_());
  }
  setup.optimizer = make_optimizer(setup.parameters, options);
  return setup;
}

OptimizerOptions golden_options(const std::string& name, const nlohmann::json& options) {
  return {.name = name.substr(0, name.find('_')),
          .learning_rate = options["lr"],
          .weight_decay = options.value("weight_decay", 0.0),
          .momentum = options.value("momentum", 0.0),
          .nesterov = options.value("nesterov", false),
          .alpha = options.value("alpha", 0.99),
          .centered = options.value("centered", false),
          .beta1 = options.contains("betas") ? options["betas"][0].get<double>() : 0.9,
          .beta2 = options.contains("betas") ? options["betas"][1].get<double>() : 0.999,
          .epsilon = options.value("eps", 1e-8),
          .amsgrad = options.value("amsgrad", false)};
}

TEST(Optimizer, EqualsPythonOverTenSteps) {
  const nlohmann::json golden = optimizer_goldens();
  for (const auto& [name, expected] : golden["optimizers"].items()) {
    const Trained setup = make(golden["shapes"], golden_options(name, expected["options"]));
    setup.steps(0, 10);
    for (std::size_t k = 0; k < setup.parameters.size(); ++k) {
      const at::Tensor values = setup.parameters[k].detach().reshape(-1);
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        const double value = expected["values"][k][i];
        EXPECT_NEAR(values[i].item<double>(), value, 1e-6 * std::max(1.0, std::abs(value))) << name;
      }
    }
  }
}

TEST(Optimizer, ResumesWithTheSameBits) {
  const nlohmann::json golden = optimizer_goldens();
  const std::vector<std::string> names = {"a.weight", "a.bias", "b.weight"};
  for (const auto& [name, expected] : golden["optimizers"].items()) {
    const OptimizerOptions options = golden_options(name, expected["options"]);
    const Trained straight = make(golden["shapes"], options);
    straight.steps(0, 4);
    NamedTensors saved;
    for (const auto& [key, value] : optimizer_state(*straight.optimizer, names)) {
      saved.emplace_back(key, value.clone());
    }
    saved.emplace_back("other.weight.square_avg", at::ones({1}));  // of another stage
    const Trained resumed = make(golden["shapes"], options);
    for (std::size_t k = 0; k < names.size(); ++k) {
      at::NoGradGuard no_grad;
      resumed.parameters[k].copy_(straight.parameters[k]);
    }
    load_optimizer_state(*resumed.optimizer, names, saved);
    straight.steps(4, 8);
    resumed.steps(4, 8);
    for (std::size_t k = 0; k < names.size(); ++k) {
      EXPECT_TRUE(straight.parameters[k].equal(resumed.parameters[k])) << name;
    }
  }
}

// More elements than one thread handles, different layouts, and the base class as the oracle.
// Without weight decay, because where it nearly cancels a gradient, rounding decides the sign of a
// whole step.
TEST(Optimizer, FusedEqualsStock) {
  torch::manual_seed(0);
  const at::Tensor start = at::randn({70, 30, 10, 10});
  const at::Tensor gradient = at::randn({70, 30, 10, 10});
  for (const double momentum : {0.0, 0.9}) {
    const auto options = torch::optim::RMSpropOptions(0.01).momentum(momentum);
    std::vector<at::Tensor> ours = {start.clone(at::MemoryFormat::ChannelsLast).requires_grad_()};
    std::vector<at::Tensor> stock = {start.clone().requires_grad_()};
    FusedRmsprop fused(ours, options);
    torch::optim::RMSprop plain(stock, options);
    for (int step = 0; step < 3; ++step) {
      ours[0].mutable_grad() = gradient + step;
      stock[0].mutable_grad() = gradient + step;
      fused.step();
      plain.step();
    }
    EXPECT_TRUE(at::allclose(ours[0], stock[0], 1e-5, 1e-6)) << momentum;
    EXPECT_EQ(ours[0]._version(), 3);
  }
}

TEST(Optimizer, FusedSgdEqualsStock) {
  torch::manual_seed(0);
  const at::Tensor start = at::randn({40, 30, 10, 10});
  const at::Tensor gradient = at::randn({40, 30, 10, 10});
  using Options = torch::optim::SGDOptions;
  for (const auto& options :
       {Options(0.01), Options(0.01).weight_decay(0.1), Options(0.01).momentum(0.9),
        Options(0.01).momentum(0.9).dampening(0.3).weight_decay(0.1),
        Options(0.01).momentum(0.9).nesterov(true)}) {
    std::vector<at::Tensor> ours = {start.clone(at::MemoryFormat::ChannelsLast).requires_grad_()};
    std::vector<at::Tensor> stock = {start.clone().requires_grad_()};
    FusedSgd fused(ours, options);
    torch::optim::SGD plain(stock, options);
    for (int step = 0; step < 3; ++step) {
      ours[0].mutable_grad() = gradient + step;
      stock[0].mutable_grad() = gradient + step;
      fused.step();
      plain.step();
    }
    EXPECT_TRUE(at::allclose(ours[0], stock[0], 1e-5, 1e-6));
    EXPECT_EQ(ours[0]._version(), 3);
  }
}

// The weight's memory format changes after its state was created. Kernels once walked both in
// parallel and mixed the elements up.
TEST(Optimizer, AllowsANewMemoryFormatBetweenSteps) {
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop"}) {
    for (const bool back : {false, true}) {
      const auto train = [&](bool change) {
        torch::manual_seed(1);
        const auto first = back ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
        const auto then = back ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
        const std::vector<at::Tensor> weights = {
            at::randn({6, 4, 3, 3}).contiguous(first).requires_grad_()};
        const auto optimizer =
            make_optimizer(weights, {.name = name, .learning_rate = 0.01, .momentum = 0.9});
        for (int step = 0; step < 4; ++step) {
          if (change && step == 1) weights[0].set_data(weights[0].detach().contiguous(then));
          weights[0].mutable_grad() = at::randn({6, 4, 3, 3});
          optimizer->step();
        }
        return weights[0].detach().contiguous();
      };
      EXPECT_TRUE(at::allclose(train(true), train(false), 1e-6, 1e-7)) << name;
    }
  }
}

TEST(Optimizer, HasTheSameBitsOnAVirtualDevice) {
  const at::Device device = virtual_devices(1)[0].torch;
  const nlohmann::json golden = optimizer_goldens();
  for (const auto& [name, expected] : golden["optimizers"].items()) {
    const OptimizerOptions options = golden_options(name, expected["options"]);
    const Trained here = make(golden["shapes"], options);
    Trained there;
    for (const at::Tensor& parameter : here.parameters) {
      there.parameters.push_back(parameter.detach().to(device).requires_grad_());
    }
    there.optimizer = make_optimizer(there.parameters, options);
    here.steps(0, 3);
    there.steps(0, 3);
    for (std::size_t k = 0; k < here.parameters.size(); ++k) {
      EXPECT_TRUE(here.parameters[k].equal(there.parameters[k].cpu())) << name;
    }
    const auto state = optimizer_state(*there.optimizer, {"a", "b", "c"});
    if (name == "sgd_plain" || name == "sgd_decay") continue;  // they have no state
    EXPECT_EQ(state.back().second.device(), device) << name;
  }
}

TEST(Optimizer, FallsBackToTheBaseClass) {
  for (const char* name : {"rmsprop", "adam", "adamw", "sgd"}) {
    const std::vector<at::Tensor> doubles = {at::ones({3}, at::kDouble).requires_grad_()};
    const auto optimizer = make_optimizer(doubles, {.name = name});
    doubles[0].mutable_grad() = at::ones({3}, at::kDouble);
    const at::Tensor loss = optimizer->step([&] { return doubles[0].sum(); });
    EXPECT_EQ(loss.item<double>(), 3) << name;
    EXPECT_LT(doubles[0].max().item<double>(), 1) << name;
  }
}

TEST(Optimizer, HasNoStateForAParameterWithoutGradient) {
  const auto setup = make({{2}, {3}}, {.name = "adam"});
  setup.parameters[1].mutable_grad() = at::ones({3});
  setup.optimizer->step();
  std::vector<std::string> keys;
  for (const auto& [key, value] : optimizer_state(*setup.optimizer, {"x", "y"}))
    keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("y.step", "y.exp_avg", "y.exp_avg_sq"));
}

template <class Error, class Function>
std::string message(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no such error";
}

TEST(Optimizer, RejectsInvalidStatesByName) {
  const auto setup = make({{2}}, {.name = "rmsprop"});
  const auto load = [&](const NamedTensors& state) {
    return message<FormatError>([&] { load_optimizer_state(*setup.optimizer, {"w"}, state); });
  };
  const at::Tensor step = at::scalar_tensor(1, at::kLong);
  EXPECT_THAT(load({{"w.step", step}}), HasSubstr("'w' lacks 'square_avg'"));
  EXPECT_THAT(load({{"w.step", step}, {"w.square_avg", at::ones({3})}}), HasSubstr("is [3]"));
  EXPECT_THAT(
      load({{"w.step", step}, {"w.square_avg", at::ones({2})}, {"w.exp_avg", at::ones({2})}}),
      HasSubstr("'w.exp_avg' does not belong to this optimizer"));
  EXPECT_THAT(load({{"w", step}}), HasSubstr("has no field name"));
  EXPECT_THAT(message<UsageError>([&] { optimizer_state(*setup.optimizer, {}); }),
              HasSubstr("1 parameters, and 0 names"));
}

// Compares with torch's own groups.
TEST(Optimizer, GroupsEqualTorchGroups) {
  const auto start = [] {
    std::vector<at::Tensor> all;
    for (int k = 0; k < 3; ++k) all.push_back(formula({3, 2}, k).requires_grad_());
    return all;
  };
  const auto ours = start(), theirs = start();
  const auto optimizer =
      make_grouped_optimizer({{.parameters = {ours[0]}},
                              {.parameters = {ours[1]}, .rate_factor = 0.1},
                              {.parameters = {ours[2]}, .rate_factor = 3, .weight_decay = 0}},
                             {.name = "adamw", .learning_rate = 0.01, .weight_decay = 0.1});
  using Options = torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (int k = 0; k < 3; ++k)
    groups.emplace_back(
        std::vector<at::Tensor>{theirs[static_cast<std::size_t>(k)]},
        std::make_unique<Options>(
            Options(0.01 * std::vector{1.0, 0.1, 3.0}[k]).weight_decay(k == 2 ? 0 : 0.1)));
  torch::optim::AdamW expected(groups, Options());
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      set_learning_rate(*optimizer, 0.02, {1, 0.1, 3});
      for (int k = 0; k < 3; ++k)
        expected.param_groups()[k].options().set_lr(0.02 * std::vector{1.0, 0.1, 3.0}[k]);
    }
    for (std::size_t k = 0; k < 3; ++k)
      ours[k].mutable_grad() = theirs[k].mutable_grad() = formula({3, 2}, 100 * (step + 1) + k);
    optimizer->step();
    expected.step();
  }
  for (std::size_t k = 0; k < 3; ++k)
    EXPECT_TRUE(at::allclose(ours[k], theirs[k], 1e-6, 1e-7)) << k;
  EXPECT_THROW(set_learning_rate(*optimizer, 0.1, {1}), UsageError);
  EXPECT_NO_THROW(make_grouped_optimizer({}, {})->step());  // of a stage without parameters
  EXPECT_NO_THROW(make_grouped_optimizer({{}}, {})->step());
}

TEST(Optimizer, RejectsInvalidOptions) {
  const std::vector<at::Tensor> parameters = {at::ones({1}).requires_grad_()};
  const auto make_message = [&](const OptimizerOptions& options) {
    return message<UsageError>([&] { make_optimizer(parameters, options); });
  };
  EXPECT_THAT(make_message({.name = "rmsporp"}), HasSubstr("did you mean 'rmsprop'?"));
  EXPECT_THAT(make_message({.name = "sgd", .learning_rate = -1}), HasSubstr("learning_rate = -1"));
  EXPECT_THAT(make_message({.name = "adam", .beta1 = 1}), HasSubstr("beta1 = 1 is not in [0, 1)"));
  EXPECT_THAT(make_message({.name = "sgd", .nesterov = true}), HasSubstr("nesterov"));
  EXPECT_THAT(make_message({.name = "adam", .nesterov = true}),
              HasSubstr("'adam' has no nesterov; sgd has"));
  EXPECT_THAT(make_message({.name = "sgd", .amsgrad = true}),
              HasSubstr("'sgd' has no amsgrad; adam and adamw have"));
  EXPECT_THAT(make_message({.name = "adamw", .centered = true}), HasSubstr("rmsprop has"));
}

// The stage of a rank may have none.
TEST(Optimizer, StepsWithoutParameters) {
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer({}, {.name = name});
    EXPECT_NO_THROW(optimizer->step());
    optimizer->zero_grad();
  }
}

TEST(Optimizer, ReadsAndSetsTheLearningRate) {
  const auto setup = make({{2}}, {.name = "adam", .learning_rate = 0.5});
  EXPECT_EQ(learning_rate(*setup.optimizer), 0.5);
  set_learning_rate(*setup.optimizer, 0.25);
  EXPECT_EQ(learning_rate(*setup.optimizer), 0.25);
}

}  // namespace
}  // namespace trestle::optim
