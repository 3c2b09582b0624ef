#include "trestle/view/curve.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"

namespace trestle::view {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;

const std::vector<double> kEpochs = {1, 2, 3, 4};

std::vector<Series> metrics() {
  return {{.chart = "loss", .name = "training", .x = kEpochs, .y = {1, 0.5, 0.3, 0.2}},
          {.chart = "loss", .name = "validation", .x = kEpochs, .y = {1.1, 0.6, 0.4, 0.21}},
          {.chart = "dice",
           .name = "validation",
           .x = kEpochs,
           .y = {0.6, 0.8, 0.95, 0.94},
           .mark = Mark::Highest}};
}

TEST(Curves, StackAChartForEachQuantity) {
  const XmlElement root = parse_xml(to_svg_curves(metrics(), {.title = "unet_quick"}));
  EXPECT_EQ(find_all(root, "g", "chart").size(), 2u);
  EXPECT_EQ(find_all(root, "path", "line").size(), 3u);
  EXPECT_EQ(find_all(root, "circle", "mark").size(), 1u);
  EXPECT_THAT(texts(root),
              AllOf(Contains("unet_quick"), Contains("loss"), Contains("dice"), Contains("epoch"),
                    Contains("training 0.200"), Contains("validation 0.940"), Contains("0.950")));
}

TEST(Curves, KeepALinesColourInEveryChart) {
  const XmlElement root = parse_xml(to_svg_curves(metrics()));
  const auto lines = find_all(root, "path", "line");
  EXPECT_NE(lines[0]->attribute("stroke"), lines[1]->attribute("stroke"));
  EXPECT_EQ(lines[1]->attribute("stroke"), lines[2]->attribute("stroke"));
}

TEST(Curves, KeepNamesAtTheEndsApart) {
  const XmlElement root = parse_xml(to_svg_curves(metrics()));
  const auto names = find_all(root, "text", "name");
  ASSERT_EQ(names.size(), 3u);
  const double first = std::stod(names[0]->attribute("y"));
  const double second = std::stod(names[1]->attribute("y"));
  EXPECT_GE(std::abs(first - second), 12);
}

TEST(Curves, LeaveAGapForValuesThatAreNotFinite) {
  std::vector<Series> series = metrics();
  series[0].y[1] = NAN;
  const XmlElement root = parse_xml(to_svg_curves(series));
  const std::string path = find_all(root, "path", "line")[0]->attribute("d");
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
  EXPECT_EQ(path.find("nan"), std::string::npos);
}

TEST(Curves, DrawOnePointNoPointAndNoLines) {
  EXPECT_NO_THROW(parse_xml(to_svg_curves({})));
  const XmlElement none =
      parse_xml(to_svg_curves({{.chart = "loss", .name = "a", .x = {}, .y = {}}}));
  EXPECT_THAT(texts(none), Contains("no data yet"));
  const XmlElement one =
      parse_xml(to_svg_curves({{.chart = "<&>", .name = "a&b", .x = {1}, .y = {0}}}));
  EXPECT_THAT(texts(one), AllOf(Contains("<&>"), Contains("a&b 0.000")));
}

TEST(Curves, LabelEpochsWithWholeNumbers) {
  const XmlElement one =
      parse_xml(to_svg_curves({{.chart = "loss", .name = "a", .x = {1}, .y = {0.5}}}));
  EXPECT_THAT(texts(one), AllOf(Contains("1"), Not(Contains("0.90")), Not(Contains("1.10"))));
  const XmlElement two =
      parse_xml(to_svg_curves({{.chart = "loss", .name = "a", .x = {1, 2}, .y = {0.5, 0.4}}}));
  EXPECT_THAT(texts(two), AllOf(Contains("1"), Contains("2"), Not(Contains("1.5"))));
}

TEST(Curves, GiveHugeValuesShortLabels) {
  const XmlElement root =
      parse_xml(to_svg_curves({{.chart = "loss", .name = "a", .x = {1, 2}, .y = {1e300, 2e300}}}));
  for (const std::string& words : texts(root)) EXPECT_LT(words.size(), 30u) << words;
}

TEST(Curves, GiveTinyValuesDistinctLabels) {
  const XmlElement root = parse_xml(
      to_svg_curves({{.chart = "loss", .name = "a", .x = {1, 2, 3}, .y = {3e-7, 1e-7, 5e-8}}}));
  EXPECT_THAT(texts(root), AllOf(Contains("2.0e-07"), Contains("a 5.00e-08"),
                                 Not(Contains("0.0000001")), Not(Contains("0.000000"))));
}

TEST(Curves, RejectXAndYOfDifferentSizes) {
  EXPECT_THROW(to_svg_curves({{.chart = "loss", .name = "a", .x = {1, 2}, .y = {1}}}), UsageError);
}

}  // namespace
}  // namespace trestle::view
