// Who may write to a tensor that crosses a boundary. The oracle is plain libtorch: it knows neither
// layers, nor stages, nor micro-batches.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using support::distance;
using support::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t width = 6;
constexpr std::int64_t samples = 8;

enum class Tap { None, BeforeRelu, AfterRelu };

// Three linear layers, with a ReLU and a skip connection behind the first.
struct Parts {
  mutable std::array<torch::nn::Linear, 3> linear;  // forward() is not const

  explicit Parts(at::ScalarType dtype) : linear{make(dtype, 1), make(dtype, 2), make(dtype, 3)} {}
  static torch::nn::Linear make(at::ScalarType dtype, int seed) {
    torch::manual_seed(seed);
    torch::nn::Linear layer(width, width);
    layer->to(dtype);
    return layer;
  }
};

at::Tensor add(at::Tensor x, at::Tensor skip) { return x + skip; }

nn::Layers layers(const Parts& parts, bool in_place, Tap tap) {
  nn::Layers net;
  auto first = net.add("first", parts.linear[0]);
  if (tap == Tap::BeforeRelu) first.keep_output("s");
  auto relu = net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(in_place)));
  if (tap == Tap::AfterRelu) relu.keep_output("s");
  net.add("second", parts.linear[1]);
  if (tap != Tap::None) net.add("join", add).take("s");
  net.add("third", parts.linear[2]);
  return net;
}

struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;  // of the parameters, and of the input
};

void collect(Outcome& outcome, const Parts& parts) {
  for (const auto& linear : parts.linear) {
    for (const auto& parameter : linear->parameters())
      outcome.gradients.push_back(parameter.grad().defined() ? parameter.grad().cpu().clone()
                                                             : at::Tensor());
  }
}

void autocast(bool enabled) {
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
  at::autocast::set_autocast_enabled(at::kPrivateUse1, enabled);
  if (!enabled) at::autocast::clear_cache();
}

at::Tensor input(at::ScalarType dtype) {
  torch::manual_seed(4);
  return torch::randn({samples, width}, dtype);
}
at::Tensor target() {
  torch::manual_seed(5);
  return torch::randint(width, {samples});
}

// The net as anybody would write it, on the whole batch.
Outcome plain(bool in_place, Tap tap, bool with_autocast, at::ScalarType dtype) {
  const Parts parts(dtype);
  const at::Tensor x = input(dtype).requires_grad_();
  autocast(with_autocast);
  const at::Tensor first = parts.linear[0]->forward(x);
  const at::Tensor relu = in_place ? first.relu_() : first.relu();
  at::Tensor y = parts.linear[1]->forward(relu);
  if (tap == Tap::BeforeRelu) y = y + first;
  if (tap == Tap::AfterRelu) y = y + relu;
  y = parts.linear[2]->forward(y);
  autocast(false);
  const at::Tensor loss = torch::nn::functional::cross_entropy(y.to(dtype), target());
  loss.backward();
  Outcome outcome{.loss = loss.item<double>(), .gradients = {}};
  collect(outcome, parts);
  outcome.gradients.push_back(x.grad());
  return outcome;
}

struct Plan {
  std::vector<int> balance;
  std::vector<Device> devices;
  std::vector<Recompute> recompute;
};

std::vector<Plan> plans(int layer_count) {
  std::vector<std::vector<int>> balances = {{layer_count}, std::vector<int>(layer_count, 1)};
  for (int first = 1; first < layer_count; ++first)
    balances.push_back({first, layer_count - first});
  std::vector<Plan> result;
  for (const auto& balance : balances) {
    const std::size_t stages = balance.size();
    auto own = virtual_devices(4);
    for (std::size_t s = own.size(); s < stages; ++s) own.push_back(own[s % 4]);
    own.resize(stages);
    const std::vector<std::vector<Device>> devices = {own, std::vector<Device>(stages, own[0]),
                                                      std::vector<Device>(stages, cpu_device())};
    std::vector<Recompute> mixed(stages, Recompute::Never);
    if (stages > 1) mixed[1] = Recompute::Always;
    for (const auto& each : devices) {
      for (const auto& recompute : {std::vector<Recompute>(stages, Recompute::Never),
                                    std::vector<Recompute>(stages, Recompute::ExceptLast),
                                    std::vector<Recompute>(stages, Recompute::Always), mixed}) {
        result.push_back({balance, each, recompute});
      }
    }
  }
  return result;
}

std::string name_of(const Plan& plan) {
  std::vector<std::string> modes;
  for (const auto mode : plan.recompute) modes.emplace_back(schedule::to_string(mode));
  return text("balance ", join(plan.balance, "-"), ", first on ",
              device_name(plan.devices[0].torch), ", last on ",
              device_name(plan.devices.back().torch), ", recompute ", join(modes, "-"));
}

PipelineOptions options_of(const Plan& plan, int micro_batches) {
  return {.devices = plan.devices,
          .balance = plan.balance,
          .micro_batches = micro_batches,
          .recompute_per_stage = plan.recompute};
}

void expect_close(const Outcome& expected, const Outcome& actual, double tolerance) {
  EXPECT_NEAR(expected.loss, actual.loss, tolerance * std::max(1.0, std::abs(expected.loss)));
  ASSERT_LE(actual.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < actual.gradients.size(); ++i) {
    ASSERT_TRUE(actual.gradients[i].defined()) << "no gradient for parameter " << i;
    const double scale = expected.gradients[i].abs().max().item<double>();
    EXPECT_LT(distance(expected.gradients[i], actual.gradients[i]), tolerance * (scale + 1e-3))
        << "parameter " << i;
  }
}

// step(), twice, so that also what the first run learnt is put to the test.
void check_step(const Plan& plan, bool in_place, Tap tap, bool with_autocast, at::ScalarType dtype,
                const Outcome& expected, double tolerance) {
  const Parts parts(dtype);
  Pipeline pipeline(layers(parts, in_place, tap), options_of(plan, 4));
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(text("step ", round));
    pipeline.zero_grad();
    autocast(with_autocast);
    const auto loss = nn::additive("cross_entropy", [&](const at::Tensor& y, const at::Tensor& t) {
      return torch::nn::functional::cross_entropy(y.to(dtype), t);
    });
    Outcome actual{.loss = pipeline.step(input(dtype), target(), loss).loss, .gradients = {}};
    autocast(false);
    collect(actual, parts);
    expect_close(expected, actual, tolerance);
  }
}

// A caller's own backward, which gives the input's gradient too.
void check_backward(const Plan& plan, bool in_place, Tap tap, bool with_autocast,
                    at::ScalarType dtype, const Outcome& expected, double tolerance) {
  const Parts parts(dtype);
  Pipeline pipeline(layers(parts, in_place, tap), options_of(plan, 3));
  const at::Tensor x = input(dtype).requires_grad_();
  autocast(with_autocast);
  const at::Tensor y = pipeline.forward(x);
  autocast(false);
  const at::Tensor loss =
      torch::nn::functional::cross_entropy(y.to(dtype), target().to(y.device()));
  loss.backward();
  Outcome actual{.loss = loss.item<double>(), .gradients = {}};
  collect(actual, parts);
  actual.gradients.push_back(x.grad());
  expect_close(expected, actual, tolerance);
}

class InPlaceMatrix : public testing::TestWithParam<std::tuple<bool, Tap, bool>> {};

TEST_P(InPlaceMatrix, EqualsPlainLibtorchOrIsRefusedUnderEveryPlan) {
  const support::WatchDog dog("in place", std::chrono::seconds(100));
  const auto [in_place, tap, with_autocast] = GetParam();
  // Autocast rounds to bfloat16: a gradient that is wrong or missing is far above that.
  const auto dtype = with_autocast ? at::kFloat : at::kDouble;
  const double tolerance = with_autocast ? 0.04 : 1e-9;
  const bool refused = in_place && tap == Tap::BeforeRelu;
  const Outcome expected = plain(in_place, tap, with_autocast, dtype);
  for (const Plan& plan : plans(tap == Tap::None ? 4 : 5)) {
    SCOPED_TRACE(name_of(plan));
    if (!refused) {
      check_step(plan, in_place, tap, with_autocast, dtype, expected, tolerance);
      check_backward(plan, in_place, tap, with_autocast, dtype, expected, tolerance);
      continue;
    }
    const Parts parts(dtype);
    Pipeline pipeline(layers(parts, in_place, tap), options_of(plan, 4));
    EXPECT_THAT(
        message_of<UsageError>([&] { pipeline.step(input(dtype), target(), nn::cross_entropy()); }),
        HasSubstr("layer 'relu' writes into the value that 'join' takes as \"s\""));
  }
}

std::string matrix_name(const testing::TestParamInfo<std::tuple<bool, Tap, bool>>& info) {
  const auto [in_place, tap, with_autocast] = info.param;
  const char* taps[] = {"NoTap", "TapBefore", "TapAfter"};
  return text(in_place ? "InPlace" : "OutOfPlace", taps[static_cast<int>(tap)],
              with_autocast ? "Autocast" : "");
}
INSTANTIATE_TEST_SUITE_P(
    All, InPlaceMatrix,
    testing::Combine(testing::Bool(), testing::Values(Tap::None, Tap::BeforeRelu, Tap::AfterRelu),
                     testing::Bool()),
    matrix_name);

// The cuts, devices and recompute modes that one refusal must be the same for.
void expect_refused_everywhere(const std::function<nn::Layers()>& make, const std::string& what) {
  const int count = static_cast<int>(make().size());
  for (const Plan& plan : plans(count)) {
    SCOPED_TRACE(name_of(plan));
    for (const bool training : {true, false}) {
      Pipeline pipeline(make(), options_of(plan, 2));
      EXPECT_THAT(message_of<UsageError>([&] {
                    if (training) pipeline.step(input(at::kDouble), target(), nn::cross_entropy());
                    if (!training) pipeline.evaluate(input(at::kDouble));
                  }),
                  HasSubstr(what));
    }
  }
  EXPECT_THAT(message_of<UsageError>([&] { make().forward(input(at::kDouble)); }), HasSubstr(what));
}

TEST(InPlace, ATakerThatWritesIntoASharedValueIsRefused) {
  expect_refused_everywhere(
      [] {
        nn::Layers net;
        net.add("first", Parts::make(at::kDouble, 1)).keep_output("s");
        net.add("second", Parts::make(at::kDouble, 2));
        net.add("join", [](at::Tensor x, at::Tensor s) { return s.add_(x); }).take("s");
        return net;
      },
      "layer 'join' writes into the value that 'second' takes");
}

TEST(InPlace, OutputsThatShareMemoryMayNotBeWrittenTo) {
  const auto make = [](bool in_place) {
    nn::Layers net;
    net.add("first", Parts::make(at::kDouble, 1));
    net.add("fork", [](at::Tensor x) { return std::make_tuple(x * 2, at::Tensor(x)); })
        .keep_output("x", 1);
    net.add("twice",
            [](at::Tensor y) {
              return std::make_tuple(y, y.view({-1, width}));
            })
        .keep_output("view", 1);
    net.add("write", [in_place](at::Tensor y) { return in_place ? y.mul_(3) : y * 3; });
    net.add("join", [](at::Tensor y, at::Tensor view) { return y + view; }).take("view");
    return net;
  };
  expect_refused_everywhere([&] { return make(true); },
                            "layer 'write' writes into the value of 'twice', which shares memory");
  Pipeline pipeline(make(false), {.devices = virtual_devices(2), .balance = {3, 2}});
  EXPECT_GT(pipeline.step(input(at::kDouble), target(), nn::cross_entropy()).loss, 0);
}

TEST(InPlace, AnOutputThatIsATappedInputMayNotBeWrittenTo) {
  expect_refused_everywhere(
      [] {
        nn::Layers net;
        net.add("first", Parts::make(at::kDouble, 1)).keep_output("s");
        net.add("same", [](at::Tensor x) { return x; });
        net.add("relu", [](at::Tensor x) { return x.relu_(); });
        net.add("join", add).take("s");
        return net;
      },
      "layer 'relu' writes into the value of 'same', which shares memory with");
}

TEST(InPlace, DisjointPartsOfOneTensorMayBeWrittenTo) {
  const auto make = [] {
    nn::Layers net;
    net.add("first", Parts::make(at::kDouble, 1));
    // Rows of a transposed tensor: each part is contiguous, so that they are seen to be disjoint.
    net.add("halves", [](at::Tensor x) {
      const at::Tensor t = x.transpose(0, 1).contiguous();
      return std::make_tuple(t.narrow(0, 0, 3), t.narrow(0, 3, 3));
    });
    net.add("write", [](at::Tensor a, at::Tensor b) { return std::make_tuple(a.mul_(2), b); });
    net.add("back", [](at::Tensor a, at::Tensor b) {
      return torch::cat({a, b}, 0).transpose(0, 1).contiguous();
    });
    return net;
  };
  const auto run = [&](std::vector<int> balance) {
    const nn::Layers net = make();
    Pipeline pipeline(net, {.devices = {cpu_device()}, .balance = std::move(balance)});
    pipeline.step(input(at::kDouble), target(), nn::cross_entropy());
    return net.parameters()[0].grad();
  };
  torch::nn::Linear first = Parts::make(at::kDouble, 1);
  const at::Tensor y = first->forward(input(at::kDouble));
  torch::nn::functional::cross_entropy(torch::cat({y.narrow(1, 0, 3) * 2, y.narrow(1, 3, 3)}, 1),
                                       target())
      .backward();
  EXPECT_LT(distance(first->weight.grad(), run({4})), 1e-10);
  EXPECT_LT(distance(first->weight.grad(), run({1, 1, 1, 1})), 1e-10);
}

// The second stage hands its input on, the third writes to it: on one device the second's input
// must still be there for its recomputation.
TEST(InPlace, APassThroughStageKeepsItsInputForRecomputation) {
  torch::nn::Linear plain = Parts::make(at::kDouble, 1);
  torch::nn::functional::cross_entropy(plain->forward(input(at::kDouble)).tanh().exp(), target())
      .backward();
  torch::nn::Linear first = Parts::make(at::kDouble, 1);
  nn::Layers net;
  net.add("first", first);
  net.add("fork", [](at::Tensor x) { return std::make_tuple(x, x.tanh()); });
  net.add("write", [](at::Tensor x, at::Tensor y) { return std::make_tuple(x.zero_(), y); });
  net.add("exp", [](at::Tensor x, at::Tensor y) { return y.exp() + 0 * x; });
  Pipeline pipeline(net, {.devices = std::vector<Device>(4, virtual_devices(1)[0]),
                          .balance = {1, 1, 1, 1},
                          .micro_batches = 4,
                          .recompute_per_stage = {Recompute::Never, Recompute::Always,
                                                  Recompute::Never, Recompute::Never}});
  for (int step = 0; step < 50; ++step) {
    pipeline.zero_grad();
    pipeline.step(input(at::kDouble), target(), nn::cross_entropy());
    ASSERT_LT(distance(plain->weight.grad(), first->weight.grad()), 1e-10) << "step " << step;
  }
}

TEST(InPlace, ASequentialWithInPlaceLayersCanBeMeasured) {
  const auto make = [] {
    torch::nn::Sequential net(Parts::make(at::kDouble, 1),
                              torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                              Parts::make(at::kDouble, 2),
                              torch::nn::Dropout(torch::nn::DropoutOptions(0.5).inplace(true)));
    net[3]->eval();
    return net;
  };
  torch::nn::Sequential plain = make();
  torch::nn::functional::cross_entropy(plain->forward(input(at::kDouble)), target()).backward();
  for (const bool sampled : {false, true}) {
    torch::nn::Sequential net = make();
    PipelineOptions options{.devices = virtual_devices(2), .micro_batches = 2};
    const at::Tensor x = input(at::kDouble);
    if (sampled) options.sample = {x};
    Pipeline pipeline(net, options);
    pipeline.step(x, target(), nn::cross_entropy());
    EXPECT_TRUE(torch::equal(x, input(at::kDouble)));
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_LT(distance(plain->parameters()[i].grad(), net->parameters()[i].grad()), 1e-10);
  }
}

class HeadOfAStage : public testing::TestWithParam<bool> {};

TEST_P(HeadOfAStage, TrainsAfterEvaluation) {
  const bool dropout = GetParam();
  const auto make = [&] {
    nn::Layers net;
    net.add("first", Parts::make(at::kDouble, 1));
    if (dropout) net.add("head", torch::nn::Dropout(torch::nn::DropoutOptions(0.5).inplace(true)));
    if (!dropout) net.add("head", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
    net.add("last", Parts::make(at::kDouble, 2));
    return net;
  };
  const auto gradient = [&](Recompute recompute, bool inference) {
    const nn::Layers net = make();
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {1, 2},
                            .micro_batches = 2,
                            .recompute = recompute});
    pipeline.evaluate(input(at::kDouble));
    if (inference) {
      const c10::InferenceMode mode;
      const at::Tensor made_inside = input(at::kDouble);
      pipeline.evaluate(made_inside);
      pipeline.forward(made_inside);
      pipeline.set_step_number(0);
    }
    pipeline.step(input(at::kDouble), target(), nn::cross_entropy());
    return net.parameters()[0].grad();
  };
  const at::Tensor expected = gradient(Recompute::Never, false);
  for (const bool inference : {false, true})
    EXPECT_TRUE(torch::equal(expected.cpu(), gradient(Recompute::Always, inference).cpu()));
}
std::string head_name(const testing::TestParamInfo<bool>& info) {
  return info.param ? "Dropout" : "Relu";
}
INSTANTIATE_TEST_SUITE_P(Layers, HeadOfAStage, testing::Bool(), head_name);

nn::Layers writes_first(const torch::nn::Linear& linear) {
  nn::Layers net;
  net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
  net.add("linear", linear);
  return net;
}

TEST(InPlace, TheCallersBatchIsLeftAlone) {
  torch::nn::Linear plain = Parts::make(at::kDouble, 1);
  torch::nn::functional::cross_entropy(plain->forward(input(at::kDouble).relu()), target())
      .backward();
  for (const Device& device : {cpu_device(), virtual_devices(1)[0]}) {
    for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
      const torch::nn::Linear linear = Parts::make(at::kDouble, 1);
      Pipeline pipeline(writes_first(linear),
                        {.devices = {device}, .micro_batches = 2, .recompute = recompute});
      const at::Tensor x = input(at::kDouble).to(device.torch);
      pipeline.profile({x}, target(), nn::cross_entropy());
      pipeline.evaluate(x);
      for (int step = 0; step < 2; ++step) {
        pipeline.zero_grad();
        pipeline.step(x, target(), nn::cross_entropy());
        EXPECT_LT(distance(plain->weight.grad(), linear->weight.grad()), 1e-10);
      }
      EXPECT_TRUE(torch::equal(x.cpu(), input(at::kDouble)));
    }
  }
}

TEST(InPlace, ACallersOwnGraphIsLeftAlone) {
  const torch::nn::Linear linear = Parts::make(at::kDouble, 1);
  Pipeline pipeline(writes_first(linear), {.devices = {cpu_device()}});
  const at::Tensor leaf = input(at::kDouble).requires_grad_();
  const at::Tensor x = leaf.tanh();  // tanh's backward needs x as it is
  (pipeline.forward(x).sum() + x.sum()).backward();
  const at::Tensor again = input(at::kDouble).requires_grad_();
  const at::Tensor y = again.tanh();
  (Parts::make(at::kDouble, 1)->forward(y.relu()).sum() + y.sum()).backward();
  EXPECT_LT(distance(again.grad(), leaf.grad()), 1e-10);
}

TEST(InPlace, OneTensorAsTwoInputsMayNotBeWrittenTo) {
  nn::Layers net(2);
  net.add("write", [](at::Tensor a, at::Tensor b) { return a.mul_(2) + b; });
  const at::Tensor x = input(at::kDouble);
  Pipeline pipeline(net, {.devices = {cpu_device()}});
  EXPECT_THAT(message_of<UsageError>([&] {
                pipeline.evaluate(nn::Values{x, x});
              }),
              HasSubstr("layer 'write' writes into the value of input 0 of the model"));
}

TEST(InPlace, ALossMayWriteToItsTargetAndOutput) {
  const auto loss = nn::additive("own", [](const at::Tensor& y, const at::Tensor& t) {
    at::Tensor mutable_target = t;
    at::Tensor mutable_output = y;
    mutable_target.clamp_(-1, 1);
    return mutable_output.sub_(mutable_target).square().mean();
  });
  const at::Tensor t = 3 * input(at::kDouble);
  torch::nn::Linear plain = Parts::make(at::kDouble, 1);
  const at::Tensor y = plain->forward(input(at::kDouble));
  (y - t.clamp(-1, 1)).square().mean().backward();
  for (const Device& device : {cpu_device(), virtual_devices(1)[0]}) {
    const torch::nn::Linear linear = Parts::make(at::kDouble, 1);
    nn::Layers net;
    net.add("linear", linear);
    Pipeline pipeline(net, {.devices = {device}, .micro_batches = 2});
    const at::Tensor mine = t.clone().to(device.torch);
    for (int step = 0; step < 2; ++step) {
      pipeline.zero_grad();
      const auto result =
          pipeline.step(input(at::kDouble), mine, loss, {.output = StepOptions::Output::Keep});
      EXPECT_LT(distance(y, result.output), 1e-10);
      EXPECT_LT(distance(plain->weight.grad(), linear->weight.grad()), 1e-10);
    }
    EXPECT_TRUE(torch::equal(mine.cpu(), t));
  }
}

TEST(InPlace, WritingThatComesAndGoesIsAnError) {
  int calls = 0;
  nn::Layers net;
  net.add("moody", [&calls](at::Tensor x) { return ++calls > 1 ? x.mul_(2) : x * 2; });
  net.add("linear", Parts::make(at::kDouble, 1));
  Pipeline pipeline(net, {.devices = {cpu_device()}, .recompute = Recompute::Always});
  EXPECT_THAT(message_of<StateError>([&] {
                pipeline.evaluate(input(at::kDouble));
                pipeline.evaluate(input(at::kDouble));
              }),
              AllOf(HasSubstr("stage 0 changed the value of input 0 of the model in place"),
                    HasSubstr("which it had left alone in all runs before")));
}

}  // namespace
}  // namespace trestle
