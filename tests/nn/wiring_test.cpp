#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/error.h"
#include "trestle/nn/layers.h"

// Every rule of wiring. Mistakes have names and are reported all at once. Includes the rules that
// torchgpipe tests for its skip connections.
namespace trestle::nn {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

at::Tensor same(at::Tensor x) { return x; }
at::Tensor sum(at::Tensor x, at::Tensor y) { return x + y; }
std::tuple<at::Tensor, at::Tensor> two(at::Tensor x) { return {x, x + 1}; }

std::string wiring_error(const Layers& layers) {
  try {
    layers.graph();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Wiring, MatchingPairPasses) {
  Layers net;
  net.add("a", same).keep_output("x");
  net.add("b", sum).take("x");
  EXPECT_EQ(wiring_error(net), "");
}

TEST(Wiring, FirstLayerWithTooFewValuesNamesLayersOfTwo) {
  Layers net;
  net.add("a", sum);
  EXPECT_THAT(wiring_error(net),
              AllOf(HasSubstr("layer 'a' takes 2 value(s) but gets 1 (1 from the model's input"),
                    HasSubstr("make a model of 2 inputs with nn::Layers(2)")));
  Layers two(2);
  two.add("a", sum);
  EXPECT_EQ(wiring_error(two), "");
}

TEST(Wiring, AnUnusedKeptValueIsAllowed) {  // torchgpipe rejects it
  Layers net;
  net.add("a", same).keep_output("x");
  EXPECT_EQ(wiring_error(net), "");
}

TEST(Wiring, ATakenValueThatNoLayerKeeps) {
  Layers net;
  net.add("a", same).keep_output("skip1");
  net.add("b", sum).take("skip2");
  EXPECT_THAT(wiring_error(net), AllOf(HasSubstr("layer 'b' takes 'skip2', which no layer keeps"),
                                       HasSubstr("did you mean 'skip1'?")));
}

TEST(Wiring, KeptTwice) {
  Layers net;
  net.add("a", same).keep_output("x");
  net.add("b", same).keep_output("x");
  EXPECT_THAT(wiring_error(net), HasSubstr("'x' is kept 2 times: by layer 'a' and layer 'b'"));
}

TEST(Wiring, TakenTwiceIsAFanOut) {  // torchgpipe rejects it
  Layers net;
  net.add("a", same).keep_output("x");
  net.add("b", sum).take("x");
  net.add("c", sum).take("x");
  EXPECT_TRUE(net.forward(at::ones({2})).equal(at::full({2}, 3.0)));
}

TEST(Wiring, TakesOneNameAndKeepsAnother) {
  Layers net;
  net.add("a", same).keep_output("x");
  net.add("b", sum).take("x").keep_output("y");
  net.add("c", sum).take("y");
  EXPECT_TRUE(net.forward(at::ones({2})).equal(at::full({2}, 4.0)));
}

TEST(Wiring, OneLayerCannotTakeTheNameThatItKeeps) {
  Layers net;
  net.add("a", sum).take("x").keep_output("x");
  EXPECT_THAT(wiring_error(net), HasSubstr("layer 'a' takes 'x', which it keeps itself"));
}

TEST(Wiring, AllMistakesAreReportedAtOnce) {
  Layers net;
  net.add("a", same).keep_output("x");
  net.add("b", same).keep_output("x");
  net.add("c", sum).take("y");
  net.add("d", sum);
  net.add("d", same).take("x");
  net.add("e", same).keep_output("z", 3);
  EXPECT_THAT(
      wiring_error(net),
      AllOf(HasSubstr("6 mistakes"), HasSubstr("'x' is kept 2 times"),
            HasSubstr("layer 'c' takes 'y', which no layer keeps"),
            HasSubstr("argument 1 has no value"),
            HasSubstr("layer 'd' takes 1 value(s) but gets 2"), HasSubstr("2 layers are named 'd'"),
            HasSubstr("layer 'e' keeps as 'z' its output 3, but has 1 output(s)")));
}

TEST(Wiring, ANameBelongsToItsContainer) {
  Layers block;
  block.add("a", same).keep_output("x");
  block.add("b", sum).take("x");
  Layers net;
  net.add("one", block);
  net.add("two", block);
  EXPECT_TRUE(net.forward(at::ones({2})).equal(at::full({2}, 4.0)));
  const Graph graph = net.graph();
  EXPECT_EQ(graph.layers[3].name, "two.b");
  EXPECT_EQ(graph.edges[5].name, "two.x");
}

TEST(Wiring, AContainersNameCanBeTakenFromOutside) {
  Layers block;
  block.add("a", same).keep_output("x");
  Layers net;
  net.add("block", block);
  net.add("b", sum).take("block.x");
  EXPECT_TRUE(net.forward(at::ones({2})).equal(at::full({2}, 2.0)));

  Layers wrong;
  wrong.add("block", block);
  wrong.add("b", sum).take("x");
  EXPECT_THAT(wiring_error(wrong), HasSubstr("takes 'x', which no layer keeps"));
}

TEST(Wiring, KeptOnlyLater) {
  Layers net;
  net.add("a", sum).take("x");
  net.add("b", same).keep_output("x");
  EXPECT_THAT(wiring_error(net),
              HasSubstr("layer 'a' takes 'x', which layer 'b' keeps only later"));
}

TEST(Wiring, AKeptInputComesFromItsProducer) {
  Layers net;
  net.add("a", same).keep_input("input");
  net.add("b", same).keep_input("hidden");
  net.add("c", [](at::Tensor x, at::Tensor y, at::Tensor z) { return x + y + z; })
      .take("input")
      .take("hidden");
  const std::vector<Edge> expected = {{model_input, 0, 0, 0, ""}, {0, 0, 1, 0, ""},
                                      {1, 0, 2, 0, ""},           {model_input, 0, 2, 1, "input"},
                                      {0, 0, 2, 2, "hidden"},     {2, 0, 3, 0, ""}};
  EXPECT_EQ(net.graph().edges, expected);
}

TEST(Wiring, AKeptSideOutputIsNotPassedOn) {
  Layers net;
  net.add("two", two).keep_output("second", 1);
  net.add("same", same);
  net.add("sum", sum).take("second");
  EXPECT_TRUE(net.forward(at::ones({1})).equal(at::full({1}, 3.0)));
}

TEST(Wiring, PassOnChoosesAndRepeats) {
  Layers net;
  net.add("two", two).pass_on({1, 1});
  net.add("sum", sum);
  EXPECT_TRUE(net.forward(at::ones({1})).equal(at::full({1}, 4.0)));
  Layers wrong;
  wrong.add("two", two).pass_on({2});
  EXPECT_THAT(wiring_error(wrong),
              HasSubstr("layer 'two' passes on its output 2, but has 2 output(s)"));
}

TEST(Wiring, AVectorOfTensorsNeedsPassOn) {
  const auto vector = [](at::Tensor x) { return std::vector<at::Tensor>{x, x * 2}; };
  Layers net;
  net.add("vector", vector);
  EXPECT_THAT(wiring_error(net), HasSubstr("select outputs with pass_on({0, ...})"));
  Layers selected;
  selected.add("vector", vector).pass_on({0, 1});
  selected.add("sum", sum);
  EXPECT_TRUE(selected.forward(at::ones({1})).equal(at::full({1}, 3.0)));
  Layers too_many;
  too_many.add("vector", vector).pass_on({2});
  EXPECT_THROW(too_many.forward(at::ones({1})), UsageError);  // known only after the call
}

TEST(Wiring, NegativeOutputsAreMistakesToo) {
  Layers net;
  net.add("a", same).keep_output("x", -1);
  EXPECT_THAT(wiring_error(net), HasSubstr("layer 'a' keeps as 'x' its output"));
}

TEST(Wiring, TheSameModuleTwice) {
  const torch::nn::Linear linear(2, 2);
  Layers net;
  net.add("a", linear);
  net.add("b", linear);
  EXPECT_THAT(wiring_error(net), AllOf(HasSubstr("layers 'a' and 'b' are the same module"),
                                       Not(HasSubstr("share a parameter"))));
}

TEST(Wiring, AParameterSharedByTwoLayers) {
  torch::nn::Linear first(2, 2);
  torch::nn::Linear second(2, 2);
  second->weight = second->register_parameter("tied", first->weight);
  Layers net;
  net.add("a", first);
  net.add("b", second);
  EXPECT_THAT(wiring_error(net),
              HasSubstr("layers 'a' and 'b' share a parameter: a.weight is b.tied"));
}

TEST(Wiring, NestedModelsPassOnTheirExtraOutputs) {
  Layers inner;
  inner.add("a", same).keep_output("x");
  inner.add("b", [](at::Tensor x) { return x * 10; });
  inner.also_return("x");
  EXPECT_EQ(inner.forward(Values{at::ones({1})}).size(), 2u);
  Layers net;
  net.add("inner", inner);
  net.add("sum", sum);
  EXPECT_TRUE(net.forward(at::ones({1})).equal(at::full({1}, 11.0)));
  Layers outermost;
  outermost.add("inner", inner);
  EXPECT_EQ(outermost.graph().outputs, 2);
  Layers wrong;
  wrong.add("a", same);
  wrong.also_return("nothing");
  EXPECT_THAT(wiring_error(wrong), HasSubstr("the model returns 'nothing', which no layer keeps"));
}

TEST(Wiring, TakeAppliesToTheFirstLayerOfANestedModel) {
  Layers inner;
  inner.add("sum", sum);
  inner.add("twice", [](at::Tensor x) { return x * 2; });
  Layers net;
  net.add("a", same).keep_output("x");
  net.add("inner", inner).take("x").keep_output("out");
  net.add("end", sum).take("out");
  EXPECT_TRUE(net.forward(at::ones({1})).equal(at::full({1}, 8.0)));
}

TEST(Wiring, AnEmptyNestedModelIsRejected) {
  Layers net;
  EXPECT_THROW(net.add("nothing", Layers()), UsageError);
}

TEST(Wiring, AnEmptyModelReturnsItsInput) {
  EXPECT_TRUE(Layers().forward(at::ones({3})).equal(at::ones({3})));
}

TEST(Wiring, HandWrittenGraphsAreChecked) {
  Graph graph;
  graph.layers = {make_layer("a", same), make_layer("b", sum)};
  graph.edges = {{model_input, 0, 0, 0}, {0, 0, 1, 0}, {1, 0, 1, 1}, {0, 7, 2, 0}};
  try {
    check(graph);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr("layer 'b' takes a value of layer 'b', which runs only later"),
              HasSubstr("the model's output takes output 7 of layer 'a', which has only 1")));
  }
}

}  // namespace
}  // namespace trestle::nn
