// I and W together compute what one backward of torch computes, to the bit.
#include "trestle/pipeline/execute/split_backward.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/device/device.h"
#include "trestle/nn/boundary.h"
#include "trestle/recompute/checkpoint.h"
#include "trestle/recompute/recomputed_nodes.h"

namespace another_library {

// A function that computes all its gradients whenever it runs, and counts its runs.
struct CountedProduct : torch::autograd::Function<CountedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, std::int64_t counter) {
    context->save_for_backward({x, weight});
    context->saved_data["counter"] = counter;
    return x.mm(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the test's own counter
    ++*reinterpret_cast<int*>(context->saved_data["counter"].toInt());
    const auto saved = context->get_saved_variables();
    return {given[0].mm(saved[1].t()), saved[0].t().mm(given[0]), at::Tensor()};
  }
};

// Its backward changes the gradient that it receives in place.
struct TripledInPlace : torch::autograd::Function<TripledInPlace> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 3;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list given) {
    return {given[0].mul_(3)};
  }
};

}  // namespace another_library

namespace trestle::pipeline {
namespace {

using another_library::CountedProduct;
using another_library::TripledInPlace;

using torch::autograd::Edge;
using Tensors = std::vector<at::Tensor>;

// A net, and inputs for it. Equal on each call.
struct SplitCase {
  std::vector<at::Tensor> parameters;
  std::function<Tensors(const Tensors&)> forward;
  std::function<Tensors()> inputs;
};

template <class Module>
SplitCase module_case(Module module, std::vector<std::int64_t> shape,
                      at::ScalarType dtype = at::kFloat) {
  module->to(dtype);
  return {
      .parameters = module->parameters(),
      .forward = [module](const Tensors& x) mutable -> Tensors { return {module->forward(x[0])}; },
      .inputs = [shape, dtype]() -> Tensors {
        torch::manual_seed(3);
        return {torch::randn(shape, dtype)};
      }};
}

Tensors gradients_of(const Tensors& outputs) {
  torch::manual_seed(5);
  Tensors gradients;
  for (const at::Tensor& output : outputs)
    gradients.push_back(output.defined() && output.requires_grad()
                            ? torch::randn(output.sizes(), output.options().requires_grad(false))
                            : at::Tensor());
  return gradients;
}

Tensors take_gradients(const Tensors& parameters) {
  Tensors taken;
  for (const at::Tensor& parameter : parameters) {
    taken.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    parameter.mutable_grad() = at::Tensor();
  }
  return taken;
}

struct SplitOutcome {
  Tensors inputs;      // their gradients
  Tensors parameters;  // the same
};

// torch's own backward.
SplitOutcome whole(const SplitCase& net, int micro_batches) {
  SplitOutcome outcome;
  std::vector<Tensors> kept, outputs;
  for (int m = 0; m < micro_batches; ++m) {
    Tensors inputs = net.inputs();
    for (at::Tensor& input : inputs)
      if (input.is_floating_point()) input.requires_grad_();
    torch::manual_seed(7);
    outputs.push_back(net.forward(inputs));
    kept.push_back(inputs);
  }
  for (int m = 0; m < micro_batches; ++m) {
    const Tensors gradients = gradients_of(outputs[static_cast<std::size_t>(m)]);
    Tensors roots, given;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      roots.push_back(outputs[static_cast<std::size_t>(m)][i]);
      given.push_back(gradients[i]);
    }
    torch::autograd::backward(roots, given);
    for (const at::Tensor& input : kept[static_cast<std::size_t>(m)])
      outcome.inputs.push_back(input.grad());
  }
  outcome.parameters = take_gradients(net.parameters);
  return outcome;
}

struct Started {
  SplitBackward split;
  nn::GradientSink sink;
};

// F and I of one micro-batch. Only the returned object holds parts of the graph.
Started start(const SplitCase& net) {
  const Tensors inputs = net.inputs();
  nn::GradientSink sink(inputs.size());
  std::vector<Edge> edges(inputs.size());
  Tensors inside;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool wants = inputs[i].is_floating_point();
    inside.push_back(wants ? sink.begin(i, inputs[i]) : inputs[i]);
    if (wants) edges[i] = sink.edge(i);
  }
  torch::manual_seed(7);
  const Tensors outputs = net.forward(inside);
  const Tensors gradients = gradients_of(outputs);
  GradientRoots roots;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (gradients[i].defined())
      roots.add(torch::autograd::impl::gradient_edge(outputs[i]), gradients[i]);
  inside.clear();
  return {backward_to_inputs(roots, edges), sink};
}

// I of all micro-batches, and then W of all in another thread.
SplitOutcome split(const SplitCase& net, int micro_batches) {
  SplitOutcome outcome;
  std::vector<WeightGradients> weights;
  for (int m = 0; m < micro_batches; ++m) {
    SplitBackward done = start(net).split;
    for (const at::Tensor& gradient : done.input_gradients) outcome.inputs.push_back(gradient);
    weights.push_back(std::move(done.weights));
  }
  for (const at::Tensor& parameter : net.parameters)
    EXPECT_FALSE(parameter.grad().defined()) << "I accumulated into a parameter";
  std::thread([&] {
    at::init_num_threads();
    for (WeightGradients& own : weights) own.accumulate();
  }).join();
  outcome.parameters = take_gradients(net.parameters);
  return outcome;
}

// Several gradients of one weight may be added in another order.
enum class Equal { Bits, Rounded };

void expect_equal(const Tensors& expected, const Tensors& actual, const char* what,
                  Equal equal = Equal::Bits) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), actual[i].defined()) << what << " " << i;
    if (!expected[i].defined()) continue;
    EXPECT_EQ(expected[i].sizes(), actual[i].sizes()) << what << " " << i;
    EXPECT_EQ(expected[i].dtype(), actual[i].dtype()) << what << " " << i;
    EXPECT_TRUE(equal == Equal::Bits ? at::equal(expected[i], actual[i])
                                     : at::allclose(expected[i], actual[i], 1e-13, 1e-13))
        << what << " " << i << " differs by " << (expected[i] - actual[i]).abs().max();
  }
}

void expect_same(const SplitCase& net, int micro_batches = 3, Equal equal = Equal::Bits) {
  const SplitOutcome expected = whole(net, micro_batches);
  const SplitOutcome actual = split(net, micro_batches);
  expect_equal(expected.inputs, actual.inputs, "the gradient of input", equal);
  expect_equal(expected.parameters, actual.parameters, "the gradient of parameter", equal);
}

torch::nn::Sequential conv_blocks(bool in_place) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < 3; ++i) {
    net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)));
    net->push_back(torch::nn::BatchNorm2d(4));
    net->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(in_place)));
  }
  return net;
}

TEST(SplitBackward, MatchesOneOfConvolutionsWithBatchNorm) {
  expect_same(module_case(conv_blocks(false), {2, 4, 9, 7}));
  expect_same(module_case(conv_blocks(true), {2, 4, 9, 7}));
}

TEST(SplitBackward, MatchesOneOfLinearLayersNormsAndDropout) {
  torch::manual_seed(1);
  expect_same(module_case(
      torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})),
                            torch::nn::Linear(6, 12), torch::nn::GELU(), torch::nn::Dropout(0.3),
                            torch::nn::Linear(torch::nn::LinearOptions(12, 6).bias(false)),
                            torch::nn::PReLU()),
      {5, 6}));
}

TEST(SplitBackward, MatchesOneOfRecurrentLayersAndAttention) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 7).num_layers(2));
  expect_same({.parameters = lstm->parameters(),
               .forward = [lstm](const Tensors& x) mutable -> Tensors {
                 const auto [y, state] = lstm->forward(x[0]);
                 return {y, std::get<0>(state)};
               },
               .inputs = []() -> Tensors {
                 torch::manual_seed(3);
                 return {torch::randn({4, 2, 5})};
               }});
  torch::nn::MultiheadAttention attention(8, 2);
  expect_same({.parameters = attention->parameters(),
               .forward = [attention](const Tensors& x) mutable -> Tensors {
                 return {std::get<0>(attention->forward(x[0], x[1], x[1]))};
               },
               .inputs = []() -> Tensors {
                 torch::manual_seed(3);
                 return {torch::randn({4, 2, 8}), torch::randn({5, 2, 8})};
               }});
}

// Tied weights, views, in-place changes of views, outputs that are inputs, None, integers, a branch
// that depends on no input, and an output without a gradient.
TEST(SplitBackward, MatchesOneOfAnyGraph) {
  torch::manual_seed(1);
  const at::Tensor tied = torch::randn({6, 6}, at::kDouble).requires_grad_();
  const at::Tensor scale = torch::randn({6}, at::kDouble).requires_grad_();
  const at::Tensor base = torch::randn({3, 6}, at::kDouble).requires_grad_();
  const at::Tensor table = torch::randn({10, 6}, at::kDouble).requires_grad_();
  const at::Tensor unused = torch::randn({2}).requires_grad_();
  expect_same({.parameters = {tied, scale, base, table, unused},
               .forward = [=](const Tensors& x) -> Tensors {
                 at::Tensor h = at::linear(x[0], tied).relu_();
                 h = at::linear(h, tied.t()) + at::embedding(table, x[1]);
                 at::Tensor z = h.clone();
                 z.select(0, 0).mul_(scale);
                 at::Tensor filled = base.clone();
                 filled.select(0, 1).add_(h.sum(0));
                 filled.select(0, 2).mul_(tied.select(0, 0));
                 const auto halves = (z * scale).chunk(2, -1);
                 const at::Tensor normed = tied / tied.norm();  // a weight of a weight
                 return {halves[0],
                         halves[1],
                         at::Tensor(),
                         h.argmax(-1),
                         (base * base).sum(0) * scale,
                         filled,
                         at::linear(x[0], normed, scale),
                         x[0]};
               },
               .inputs = []() -> Tensors {
                 torch::manual_seed(3);
                 return {torch::randn({4, 6}, at::kDouble), torch::tensor({1, 2, 1, 9})};
               }},
              3, Equal::Rounded);
}

// Gradients that arrive broadcast or in another dtype are reduced and cast as in one backward.
TEST(SplitBackward, ReducesBroadcastGradients) {
  torch::manual_seed(1);
  const at::Tensor column = torch::randn({4, 1}).requires_grad_();
  const at::Tensor one = torch::randn({}, at::kDouble).requires_grad_();
  expect_same({.parameters = {column, one},
               .forward = [=](const Tensors& x) -> Tensors {
                 return {x[0] * column + one, x[0].to(at::kDouble) * one};
               },
               .inputs = []() -> Tensors {
                 torch::manual_seed(3);
                 return {torch::randn({4, 6})};
               }});
}

TEST(SplitBackward, RunsAnotherFunctionOnce) {
  torch::manual_seed(1);
  int runs = 0;
  const at::Tensor weight = torch::randn({6, 6}).requires_grad_();
  const auto counter = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&runs));
  const SplitCase net{
      .parameters = {weight},
      .forward = [=](const Tensors& x) -> Tensors {
        return {CountedProduct::apply(CountedProduct::apply(x[0], weight, counter).tanh(),
                                      weight.t(), counter)};
      },
      .inputs = []() -> Tensors {
        torch::manual_seed(3);
        return {torch::randn({4, 6})};
      }};
  expect_same(net, 2);
  EXPECT_EQ(runs, 8);  // two each, in two micro-batches, whole and split
  EXPECT_EQ(start(net).split.whole.size(), 2U);
  EXPECT_TRUE(start(module_case(torch::nn::Linear(6, 6), {4, 6})).split.whole.empty());
}

// The operators above pass the gradient on as it is, and W reads it later.
TEST(SplitBackward, KeepsGradientsThatAreChangedInPlaceAfterwards) {
  torch::manual_seed(1);
  const at::Tensor weight = torch::randn({4, 6}).requires_grad_();
  const at::Tensor row = torch::randn({6}).requires_grad_();
  const at::Tensor matrix = torch::randn({6, 6}).requires_grad_();
  const auto inputs = []() -> Tensors {
    torch::manual_seed(3);
    return {torch::randn({4, 6})};
  };
  expect_same({.parameters = {weight, row},
               .forward = [=](const Tensors& x) -> Tensors {
                 return {(TripledInPlace::apply(x[0]) + weight) - row};
               },
               .inputs = inputs});
  expect_same({.parameters = {weight},
               .forward = [=](const Tensors& x) -> Tensors {
                 at::Tensor h = x[0] * 2;
                 h.register_hook([](const at::Tensor& gradient) { return gradient.mul_(0.5); });
                 return {h + weight};
               },
               .inputs = inputs});
  // One gradient for two branches.
  expect_same({.parameters = {matrix},
               .forward = [=](const Tensors& x) -> Tensors {
                 return {at::linear(x[0], matrix) + TripledInPlace::apply(x[0].tanh())};
               },
               .inputs = inputs});
}

// A checkpointed function runs in the forward, and once for I and W together.
TEST(SplitBackward, RecomputesACheckpointedFunctionOnce) {
  torch::manual_seed(1);
  torch::nn::Linear first(6, 6), second(6, 6);
  Tensors parameters = first->parameters();
  for (const at::Tensor& parameter : second->parameters()) parameters.push_back(parameter);
  int runs = 0;
  const SplitCase net{.parameters = parameters,
                      .forward = [=, &runs](const Tensors& x) mutable -> Tensors {
                        const at::Tensor h = nn::checkpoint(
                            [&runs, first](const at::Tensor& y) mutable {
                              ++runs;
                              return torch::tanh(first(y));
                            },
                            x[0]);
                        return {second(h)};
                      },
                      .inputs = []() -> Tensors {
                        torch::manual_seed(3);
                        return {torch::randn({4, 6})};
                      }};
  recompute::RecomputedNodes recomputed;
  nn::GradientSink sink(1);
  const at::Tensor output = net.forward({sink.begin(0, net.inputs()[0])})[0];
  const auto ranges = recomputed.take();
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(runs, 1);
  GradientRoots roots;
  roots.add(torch::autograd::impl::gradient_edge(output), gradients_of({output})[0]);
  SplitBackward split = backward_to_inputs(roots, {sink.edge(0)}, ranges);
  EXPECT_EQ(runs, 2);
  split.weights.accumulate();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(split.whole.size(), 1U);
  const Tensors own = take_gradients(parameters);
  const SplitOutcome expected = whole(net, 1);
  expect_equal(expected.inputs, split.input_gradients, "the gradient of input");
  expect_equal(expected.parameters, own, "the gradient of parameter");
}

TEST(SplitBackward, CallsEachHookOnce) {
  torch::manual_seed(1);
  torch::nn::Linear first(6, 6), second(6, 6);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({6}));
  std::map<std::string, int> calls;
  const auto hook = [&calls](const char* name, double factor) {
    return [&calls, name, factor](const at::Tensor& gradient) {
      ++calls[name];
      return gradient * factor;
    };
  };
  first->weight.register_hook(hook("weight", 3));
  norm->weight.register_hook(hook("norm", 5));
  Tensors parameters = first->parameters();
  for (const auto& own : {second->parameters(), norm->parameters()})
    parameters.insert(parameters.end(), own.begin(), own.end());
  const SplitCase net{.parameters = parameters,
                      .forward = [=](const Tensors& x) mutable -> Tensors {
                        at::Tensor h = first(x[0]);
                        h.register_hook(hook("activation", 2));
                        return {second(norm(h))};
                      },
                      .inputs = []() -> Tensors {
                        torch::manual_seed(3);
                        return {torch::randn({4, 6})};
                      }};
  const SplitOutcome expected = whole(net, 1);
  calls.clear();
  Started started = start(net);
  EXPECT_EQ(calls["activation"], 1);
  EXPECT_EQ(calls["weight"] + calls["norm"], 0);
  started.split.weights.accumulate();
  EXPECT_EQ(calls["activation"], 1);
  EXPECT_EQ(calls["weight"], 1);
  EXPECT_EQ(calls["norm"], 1);
  expect_equal(expected.inputs, started.split.input_gradients, "the gradient of input");
  expect_equal(expected.parameters, take_gradients(parameters), "the gradient of parameter");
}

TEST(SplitBackward, LeavesTheWholeBackwardToWWithoutInputs) {
  torch::manual_seed(1);
  const SplitCase net{
      .parameters = {torch::randn({4, 6}).requires_grad_()}, .forward = {}, .inputs = {}};
  const at::Tensor& weight = net.parameters[0];
  const at::Tensor output = (weight * weight).sum();
  GradientRoots roots;
  roots.add(torch::autograd::impl::gradient_edge(output), at::ones({}));
  SplitBackward split = backward_to_inputs(roots, {Edge(), Edge()});
  ASSERT_EQ(split.input_gradients.size(), 2U);
  EXPECT_FALSE(split.input_gradients[0].defined());
  EXPECT_FALSE(weight.grad().defined());
  split.weights.accumulate();
  EXPECT_TRUE(at::equal(weight.grad(), 2 * weight.detach()));
  split.weights.accumulate();  // nothing is left
  EXPECT_TRUE(at::equal(weight.grad(), 2 * weight.detach()));
}

TEST(SplitBackward, RunsGraphsAsDeepAsAModelIsLong) {
  const at::Tensor weight = torch::full({1}, 1.0, at::kDouble).requires_grad_();
  const SplitCase net{.parameters = {weight},
                      .forward = [=](const Tensors& x) -> Tensors {
                        at::Tensor y = x[0];
                        for (int i = 0; i < 20000; ++i) y = y * weight;
                        return {y};
                      },
                      .inputs = []() -> Tensors { return {torch::ones({1}, at::kDouble)}; }};
  expect_same(net, 1);
}

TEST(SplitBackward, KeepsNothingOfAnAbandonedMicroBatch) {
  torch::manual_seed(1);
  torch::nn::Linear layer(6, 6);
  const at::Tensor input = torch::randn({4, 6});
  {
    nn::GradientSink sink(1);
    const at::Tensor output = layer(sink.begin(0, input)).tanh();
    GradientRoots roots;
    roots.add(torch::autograd::impl::gradient_edge(output), torch::ones_like(output.detach()));
    const SplitBackward split = backward_to_inputs(roots, {sink.edge(0)});
    EXPECT_GT(input.storage().use_count(), 1U) << "W needs the layer's input";
  }
  EXPECT_EQ(input.storage().use_count(), 1U);
  EXPECT_FALSE(layer->weight.grad().defined());
}

// The results of all tanh but the last are needed by I alone. W needs the inputs of both products
// and the gradients of their outputs.
TEST(SplitMemory, FreesWhatWeightsDoNotNeed) {
  constexpr std::int64_t rows = 1024, narrow = 16, wide = 256;
  constexpr int tanhs = 5;
  constexpr Bytes small = rows * narrow * 4, large = rows * wide * 4;
  constexpr Bytes weights = 2 * narrow * wide * 4;
  constexpr Bytes scalars = 1024;  // the loss and its gradient
  const at::Device device = virtual_devices(1)[0].torch;
  torch::manual_seed(1);
  const Bytes before = memory_usage(device).current;
  const at::Tensor first = torch::randn({wide, narrow}).to(device).requires_grad_();
  const at::Tensor second = torch::randn({narrow, wide}).to(device).requires_grad_();
  ASSERT_EQ(memory_usage(device).current, before + weights);
  SplitBackward split;
  {
    nn::GradientSink sink(1);
    GradientRoots roots;
    {
      at::Tensor h = at::linear(sink.begin(0, torch::randn({rows, narrow}).to(device)), first);
      for (int i = 0; i < tanhs; ++i) h = h.tanh();
      const at::Tensor loss = at::linear(h, second).square().sum();
      roots.add(torch::autograd::impl::gradient_edge(loss), torch::ones_like(loss.detach()));
    }
    // F keeps the results of tanh, the net's input and its output.
    const Bytes kept_by_f = before + weights + tanhs * large + 2 * small;
    const Bytes after_f = memory_usage(device).current;
    EXPECT_GE(after_f, kept_by_f);
    EXPECT_LE(after_f, kept_by_f + scalars);

    split = backward_to_inputs(roots, {sink.edge(0)});
    // The inputs of the products, the gradients of their outputs, and that of the net's input stay.
    const Bytes kept_by_i = before + weights + 2 * large + 3 * small;
    const Bytes after_i = memory_usage(device).current;  // nothing is freed later
    EXPECT_GE(after_i, kept_by_i);
    EXPECT_LE(after_i, kept_by_i + scalars);
    EXPECT_LT(after_i, after_f);
    EXPECT_FALSE(first.grad().defined());
    EXPECT_FALSE(second.grad().defined());
  }
  EXPECT_EQ(split.input_gradients.at(0).sizes(), at::IntArrayRef({rows, narrow}));
  split.input_gradients.clear();
  split.weights.accumulate();
  EXPECT_EQ(memory_usage(device).current, before + 2 * weights);
  EXPECT_TRUE(first.grad().defined());
  EXPECT_TRUE(second.grad().defined());
}

}  // namespace
}  // namespace trestle::pipeline
