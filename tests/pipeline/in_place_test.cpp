// Writes to tensors that cross a boundary: refused with the layer's name, or applied to a copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/all_plans.h"
#include "trestle/base/error.h"

namespace trestle {
namespace {

using support::add;
using support::distance;
using support::input;
using support::message_of;
using support::name_of;
using support::options_of;
using support::Parts;
using support::Plan;
using support::plans;
using support::target;
using support::width;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Expects the same refusal under all cuts, devices and recompute modes.
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

TEST(InPlace, RefusesConsumerThatWritesToSharedValue) {
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

TEST(InPlace, RefusesWriteToOutputsThatShareMemory) {
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

TEST(InPlace, RefusesWriteToOutputThatIsTappedInput) {
  expect_refused_everywhere(
      [] {
        nn::Layers net;
        net.add("first", Parts::make(at::kDouble, 1)).keep_output("s");
        net.add("same", [](at::Tensor x) { return x; });
        net.add("relu", [](at::Tensor x) { return x.relu_(); });
        net.add("join", add).take("s");
        return net;
      },
      "layer 'relu' writes into the value of 'same', which shares memory with the value that "
      "'same' takes and 'join' takes as \"s\"");
}

TEST(InPlace, RefusesWriteToReturnedBuffer) {
  struct PositionsImpl : torch::nn::Module {
    PositionsImpl() { table = register_buffer("table", torch::zeros({1, width}, at::kDouble)); }
    at::Tensor forward(const at::Tensor& /*x*/) { return table; }
    at::Tensor table;
  };
  expect_refused_everywhere(
      [] {
        nn::Layers net;
        net.add("first", Parts::make(at::kDouble, 1)).keep_output("s");
        net.add("positions", std::make_shared<PositionsImpl>());
        net.add("same", [](at::Tensor x) { return x; });
        net.add("write", [](at::Tensor x) { return x.add_(1); });
        net.add("join", add).take("s");
        return net;
      },
      "layer 'write' writes into the value of 'same', which shares memory with a buffer of "
      "'positions'");
}

TEST(InPlace, RefusesWriteToReturnedParameter) {
  struct TableImpl : torch::nn::Module {
    TableImpl() {
      table = register_parameter("table", torch::ones({1, width}, at::kDouble), false);
    }
    at::Tensor forward(const at::Tensor& /*x*/) { return table; }
    at::Tensor table;
  };
  expect_refused_everywhere(
      [] {
        nn::Layers net;
        net.add("first", Parts::make(at::kDouble, 1)).keep_output("s");
        net.add("table", std::make_shared<TableImpl>());
        net.add("write", [](at::Tensor x) { return x.mul_(2); });
        net.add("join", add).take("s");
        return net;
      },
      "layer 'write' writes into the value of 'table', which shares memory with a parameter of "
      "'table'");
}

TEST(InPlace, AllowsWriteBesideValueWithTwoConsumers) {
  const auto make = [] {
    nn::Layers net;
    net.add("first", Parts::make(at::kDouble, 1));
    net.add("halves",
            [](at::Tensor x) {
              const at::Tensor t = x.transpose(0, 1).contiguous();
              return std::make_tuple(t.narrow(0, 0, 3), t.narrow(0, 3, 3));
            })
        .keep_output("second", 1)
        .pass_on({0});
    net.add("views",
            [](at::Tensor a, at::Tensor b) {
              return std::make_tuple(a, b.view({3, -1}));
            })
        .take("second")
        .keep_output("viewed", 1)
        .pass_on({0});
    net.add("write", [](at::Tensor a) { return a.mul_(2); });
    net.add("back",
            [](at::Tensor a, at::Tensor b, at::Tensor c) {
              return torch::cat({a, b + c}, 0).transpose(0, 1).contiguous();
            })
        .take("second")
        .take("viewed");
    return net;
  };
  torch::nn::Linear first = Parts::make(at::kDouble, 1);
  const at::Tensor t = first->forward(input(at::kDouble)).transpose(0, 1);
  const at::Tensor y =
      torch::cat({t.narrow(0, 0, 3) * 2, t.narrow(0, 3, 3) * 2}, 0).transpose(0, 1);
  torch::nn::functional::cross_entropy(y, target()).backward();
  for (const Plan& plan : plans(static_cast<int>(make().size()))) {
    SCOPED_TRACE(name_of(plan));
    const nn::Layers net = make();
    Pipeline pipeline(net, options_of(plan, 2));
    pipeline.step(input(at::kDouble), target(), nn::cross_entropy());
    EXPECT_LE(distance(net.parameters()[0].grad(), first->weight.grad()), 1e-12);
  }
}

TEST(InPlace, AllowsWriteToDisjointViewsOfOneTensor) {
  const auto make = [] {
    nn::Layers net;
    net.add("first", Parts::make(at::kDouble, 1));
    // Rows of a transposed tensor: each view is contiguous, so the check can see that they are
    // disjoint.
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

// The second stage passes its input on and the third writes to it. On one device, the second
// stage's recomputation still needs the original input.
TEST(InPlace, PassThroughStageKeepsInputForRecomputation) {
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
                          .plan = {.recompute_per_stage = {Recompute::Never, Recompute::Always,
                                                           Recompute::Never, Recompute::Never}}});
  for (int step = 0; step < 50; ++step) {
    pipeline.zero_grad();
    pipeline.step(input(at::kDouble), target(), nn::cross_entropy());
    ASSERT_LT(distance(plain->weight.grad(), first->weight.grad()), 1e-10) << "step " << step;
  }
}

TEST(InPlace, ProfilesSequentialWithInPlaceLayers) {
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
    if (sampled) options.plan.sample = {x};
    Pipeline pipeline(net, options);
    pipeline.step(x, target(), nn::cross_entropy());
    EXPECT_TRUE(torch::equal(x, input(at::kDouble)));
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_LT(distance(plain->parameters()[i].grad(), net->parameters()[i].grad()), 1e-10);
  }
}

class HeadOfAStage : public ::testing::TestWithParam<bool> {};

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
std::string head_name(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Dropout" : "Relu";
}
INSTANTIATE_TEST_SUITE_P(Layers, HeadOfAStage, ::testing::Bool(), head_name);

nn::Layers writes_first(const torch::nn::Linear& linear) {
  nn::Layers net;
  net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
  net.add("linear", linear);
  return net;
}

TEST(InPlace, LeavesCallersBatchUnchanged) {
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

TEST(InPlace, LeavesCallersGraphIntact) {
  const torch::nn::Linear linear = Parts::make(at::kDouble, 1);
  Pipeline pipeline(writes_first(linear), {.devices = {cpu_device()}});
  const at::Tensor leaf = input(at::kDouble).requires_grad_();
  const at::Tensor x = leaf.tanh();  // tanh's backward needs x unchanged
  (pipeline.forward(x).sum() + x.sum()).backward();
  const at::Tensor again = input(at::kDouble).requires_grad_();
  const at::Tensor y = again.tanh();
  (Parts::make(at::kDouble, 1)->forward(y.relu()).sum() + y.sum()).backward();
  EXPECT_LT(distance(again.grad(), leaf.grad()), 1e-10);
}

TEST(InPlace, RefusesWriteToTensorGivenAsTwoInputs) {
  nn::Layers net(2);
  net.add("write", [](at::Tensor a, at::Tensor b) { return a.mul_(2) + b; });
  const at::Tensor x = input(at::kDouble);
  Pipeline pipeline(net, {.devices = {cpu_device()}});
  EXPECT_THAT(message_of<UsageError>([&] {
                pipeline.evaluate(nn::Values{x, x});
              }),
              HasSubstr("layer 'write' writes into the value of input 0 of the model"));
}

TEST(InPlace, AllowsLossToWriteToTargetAndOutput) {
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

TEST(InPlace, RefusesLayerThatWritesOnlySometimes) {
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
                    HasSubstr("which it did not do in any run before")));
}

}  // namespace
}  // namespace trestle
