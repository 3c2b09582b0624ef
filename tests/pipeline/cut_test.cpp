// The stages of a cut and the values on its routes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/execute/cut.h"

namespace trestle::pipeline {
namespace {

using support::add;
using support::main_route;
using support::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor same(at::Tensor x) { return x; }

std::vector<schedule::Route> skips(const Cut& plan) {
  std::vector<schedule::Route> result;
  std::copy_if(plan.routes.begin(), plan.routes.end(), std::back_inserter(result),
               [](const auto& route) { return route.skip; });
  return result;
}

TEST(Cut, HasOnlyMainRoutesWithoutSkips) {
  const Cut plan = cut(support::chain(3).graph(), {2, 2, 1});
  EXPECT_THAT(plan.routes, ElementsAre(main_route(0), main_route(1)));
  EXPECT_THAT(plan.stages[1].inputs, ElementsAre(ValueId{1, 0}));
  EXPECT_THAT(plan.stages[1].outputs, ElementsAre(ValueId{3, 0}));
  EXPECT_THAT(plan.model_outputs, ElementsAre(ValueId{4, 0}));
}

nn::Layers with_skip() {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", same);
  net.add("c", add).take("s");
  return net;
}

TEST(Cut, SkipWithinStageNeedsNoRoute) {
  EXPECT_TRUE(cut(with_skip().graph(), {3}).routes.empty());
  EXPECT_THAT(cut(with_skip().graph(), {3}).stages[0].outputs, ElementsAre());
}

TEST(Cut, SkipToNextStageHasOneRoute) {
  const Cut plan = cut(with_skip().graph(), {2, 1});
  EXPECT_THAT(plan.routes, ElementsAre(main_route(0), schedule::Route{0, 1, true, "s"}));
}

TEST(Cut, SkipOverStagesHasOneDirectRoute) {
  const Cut plan = cut(with_skip().graph(), {1, 1, 1});
  EXPECT_THAT(plan.routes,
              ElementsAre(main_route(0), main_route(1), schedule::Route{0, 2, true, "s"}));
  // the skip does not pass through stage 1
  EXPECT_THAT(plan.stages[1].inputs, ElementsAre(ValueId{0, 0}));
  EXPECT_THAT(plan.stages[2].inputs, ElementsAre(ValueId{1, 0}, ValueId{0, 0}));
}

TEST(Cut, OrdersRoutesIntoStageBySource) {
  nn::Layers net;
  net.add("a", same).keep_output("one");
  net.add("b", same).keep_output("two");
  net.add("c", same);
  net.add("d", add).take("two");
  net.add("e", add).take("one");
  const Cut plan = cut(net.graph(), {1, 1, 1, 2});
  EXPECT_THAT(skips(plan),
              ElementsAre(schedule::Route{0, 3, true, "one"}, schedule::Route{1, 3, true, "two"}));
}

TEST(Cut, SeparatesEqualNamesInTwoContainers) {
  nn::Layers net;
  net.add("x", with_skip());
  net.add("y", with_skip());
  const Cut plan = cut(net.graph(), {1, 1, 1, 1, 1, 1});
  EXPECT_THAT(skips(plan),
              ElementsAre(schedule::Route{0, 2, true, "x.s"}, schedule::Route{3, 5, true, "y.s"}));
}

TEST(Cut, SendsTappedValueOfMainRouteOnce) {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", add).take("s");
  const Cut plan = cut(net.graph(), {1, 1});
  EXPECT_THAT(plan.routes, ElementsAre(main_route(0)));
  EXPECT_THAT(plan.route_values[0], ElementsAre(ValueId{0, 0}));
}

TEST(Cut, ConsumersInOneStageShareRoute) {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", same);
  net.add("c", add).take("s");
  net.add("d", add).take("s");
  EXPECT_THAT(skips(cut(net.graph(), {1, 1, 2})), ElementsAre(schedule::Route{0, 2, true, "s"}));
}

TEST(Cut, SendsEarlyModelOutputToLastStage) {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", same);
  net.add("c", same);
  net.also_return("s");
  const Cut plan = cut(net.graph(), {1, 1, 1});
  EXPECT_THAT(skips(plan), ElementsAre(schedule::Route{0, 2, true, "s"}));
  EXPECT_THAT(plan.model_outputs, ElementsAre(ValueId{2, 0}, ValueId{0, 0}));
}

TEST(Cut, RefusesInvalidBalances) {
  const nn::Graph graph = support::chain(3).graph();
  EXPECT_THAT(message_of<UsageError>([&] {
                cut(graph, {2, 2});
              }),
              HasSubstr("balance [2, 2] covers 4 layers, the model has 5"));
  EXPECT_THAT(message_of<UsageError>([&] { cut(graph, {3, 3}); }), HasSubstr("covers 6 layers"));
  EXPECT_THAT(message_of<UsageError>([&] {
                cut(graph, {5, 0});
              }),
              HasSubstr("has a stage without layers"));
  EXPECT_THAT(message_of<UsageError>([&] {
                cut(graph, {6, -1});
              }),
              HasSubstr("has a stage without layers"));
}

TEST(Cut, RouteHasPositionsOfItsValues) {
  const Cut plan = cut(with_skip().graph(), {1, 1, 1});
  // The skip is the first stage's only output and the last stage's second input.
  EXPECT_THAT(plan.route_outputs[2], ElementsAre(0));
  EXPECT_THAT(plan.route_inputs[2], ElementsAre(1));
}

TEST(Cut, ReportsAllErrorsOfBalanceAtOnce) {
  EXPECT_THAT(message_of<UsageError>([] {
                cut(support::chain(3).graph(), {0, 2});
              }),
              ::testing::AllOf(HasSubstr("covers 2 layers"), HasSubstr("a stage without layers")));
}

}  // namespace
}  // namespace trestle::pipeline
