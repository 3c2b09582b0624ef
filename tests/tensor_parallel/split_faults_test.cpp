// Plans whose two sides of a slice do not fit together, and odd rules.
#include <gmock/gmock.h>

#include <limits>

#include "tests/tensor_parallel/compare_split.h"
#include "trestle/base/text.h"

namespace trestle::tensor_parallel {
namespace {

using ::testing::AllOf, ::testing::HasSubstr;
using namespace trestle::testing::comparing;

struct TwoColumnsImpl : torch::nn::Module {
  TwoColumnsImpl()
      : a(register_module("a", torch::nn::Linear(6, 4))),
        b(register_module("b", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return at::cat({a(x), b(x)}, -1); }
  torch::nn::Linear a, b;
};

// Without parts each rank would take another range of a concatenation than it is given. The sizes
// are the same, so nothing else would notice.
TEST(SplitFaults, RefusesAConcatenationOfSlicesWithoutParts) {
  const InDouble in_double;
  using namespace torch::nn;
  const auto joined = [](bool normed) {
    return seeded(5, [&] {
      nn::Layers net;
      net.add("two", std::make_shared<TwoColumnsImpl>());
      if (normed) net.add("norm", BatchNorm1d(8));
      net.add("down", Linear(8, 5));
      return net;
    });
  };
  const auto doubled = [] {
    return seeded(5, [] {
      nn::Layers net;
      net.add("a", Linear(6, 4));
      net.add("cat", [](const at::Tensor& y) { return at::cat({y, y.tanh()}, -1); });
      net.add("down", Linear(8, 5));
      return net;
    });
  };
  const SplitRule a{"two.a", Split::Columns}, b{"two.b", Split::Columns};
  const SplitRule once{"a", Split::Columns}, down{"down", Split::Rows};
  const SplitRule norm{"norm", Split::Channels}, with_parts{"down", Split::Rows, {4, 4}};
  const SplitRule norm_with_parts{"norm", Split::Channels, {4, 4}};
  EXPECT_THAT(plan_refusal([&] { return joined(false); }, {a, b, down}),
              HasSubstr("'down' takes 8 features of 'two.a' (4) and 'two.b' (4): give the sizes of "
                        "what is concatenated"));
  EXPECT_THAT(plan_refusal([&] { return joined(true); }, {a, b, norm, with_parts}),
              HasSubstr("'norm' takes 8 features of 'two.a' (4) and 'two.b' (4)"));
  EXPECT_THAT(plan_refusal(doubled, {once, down}), HasSubstr("'down' takes 8 features of 'a' (4)"));
  EXPECT_THAT(plan_refusal([&] { return joined(false); }, {a, b, {"down", Split::Rows, {3, 5}}}),
              HasSubstr("'down' takes parts {3, 5}"));
  EXPECT_THAT(plan_refusal([&] { return joined(false); }, {a, b, {"down", Split::Rows, {8}}}),
              HasSubstr("'down' takes parts {8}"));
  const at::Tensor x = random({3, 6}, 1);
  compare([&] { return joined(false); }, {a, b, with_parts}, 2, x);
  compare([&] { return joined(true); }, {a, b, norm_with_parts, with_parts}, 2, x);
  compare(doubled, {once, with_parts}, 2, x);
}

// With other parts on the two sides of a slice a rank would combine features that do not belong
// together, in the right number.
TEST(SplitFaults, NamesAreMatchedQuicklyWhateverTheirStars) {
  const auto net = [] { return mlp(6); };
  std::string stars;
  for (int i = 0; i < 40; ++i) stars += "*0";
  EXPECT_THAT(plan_refusal(net, {{stars, Split::Columns}}), HasSubstr("no layer is named"));
  EXPECT_EQ(plan_refusal(net, {{"**0**", Split::Columns}, {"*2", Split::Rows}}), "no error");
  EXPECT_THAT(plan_refusal(net, {{"0*0", Split::Columns}}), HasSubstr("no layer is named"));
}

TEST(SplitFaults, SaysThatAFunctionHasNothingToSplit) {
  const auto net = [] {
    nn::Layers net;
    net.add("up", torch::nn::Linear(6, 8));
    net.add("relu", [](const at::Tensor& x) { return at::relu(x); });
    return net;
  };
  EXPECT_THAT(plan_refusal(net, {{"relu", Split::Columns}}),
              HasSubstr("'relu' is a function, which has no weights to split"));
}

TEST(SplitFaults, RefusesPartsLargerThanTheLayer) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(plan_refusal([] { return mlp(6); }, {{"0", Split::Columns, {huge, huge, 8}}}),
              HasSubstr("it has 6 outputs, fewer than one of its parts"));
}

TEST(SplitFaults, RefusesPartsThatDisagree) {
  const InDouble in_double;
  const auto net = [] { return mlp(6); };
  const SplitRule column{"0", Split::Columns}, row{"2", Split::Rows};
  const SplitRule cut_column{"0", Split::Columns, {2, 4}}, cut_row{"2", Split::Rows, {2, 4}};
  const auto fault = [](const char* columns, const char* rows) {
    return AllOf(HasSubstr(text("'0' shares its outputs as parts {", columns, "}")),
                 HasSubstr(text("'2' takes parts {", rows, "}")));
  };
  EXPECT_THAT(plan_refusal(net, {cut_column, row}), fault("2, 4", "6"));
  EXPECT_THAT(plan_refusal(net, {column, cut_row}), fault("6", "2, 4"));
  EXPECT_THAT(plan_refusal(net, {cut_column, {"2", Split::Rows, {4, 2}}}), fault("2, 4", "4, 2"));
  compare(net, {cut_column, cut_row}, 2, random({3, 6}, 1));
  const auto normed = [] {
    using namespace torch::nn;
    return seeded(5, [] {
      return nn::Layers(Sequential(Linear(6, 6), BatchNorm1d(6), ReLU(), Linear(6, 5)));
    });
  };
  const SplitRule norm{"1", Split::Channels}, cut_norm{"1", Split::Channels, {2, 4}};
  const SplitRule last{"3", Split::Rows}, cut_last{"3", Split::Rows, {2, 4}};
  EXPECT_THAT(plan_refusal(normed, {column, cut_norm, last}), HasSubstr("'1' takes parts {2, 4}"));
  EXPECT_THAT(plan_refusal(normed, {cut_column, norm, cut_last}), HasSubstr("'1' takes parts {6}"));
  compare(normed, {cut_column, cut_norm, cut_last}, 2, random({3, 6}, 1));
}

}  // namespace
}  // namespace trestle::tensor_parallel
