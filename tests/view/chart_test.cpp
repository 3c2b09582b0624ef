#include "trestle/view/chart/chart.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"
#include "trestle/view/chart/canvas.h"

namespace trestle::view {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;

Chart curves() {
  return {.title = "a & b",
          .subtitle = "2 devices",
          .x_label = "pipeline.split_size",
          .y_label = "seconds per step",
          .labels = {"1", "2", "4"},
          .series = {{.name = "gpipe",
                      .points = {{2.5, 2.25, 3, 2.4}, {1.5, 1.5, 1.5, 1.4}, {2, 1.9, 2.2, 2.1}}}}};
}

std::vector<std::string> words_of(const std::string& svg) {
  std::vector<std::string> words;
  const XmlElement root = parse_xml(svg);
  for (const auto* element : find_all(root, "text")) words.push_back(element->text);
  return words;
}

std::size_t paths_with(const std::string& svg, const std::string& dashes) {
  std::size_t count = 0;
  const XmlElement root = parse_xml(svg);
  for (const auto* path : find_all(root, "path"))
    count +=
        path->attribute("stroke-dasharray") == dashes && path->attribute("stroke-width") != "1";
  return count;
}

TEST(Chart, CurvesShowLabelsErrorBarsAndPrediction) {
  const std::string svg = to_svg(curves());
  EXPECT_THAT(words_of(svg),
              IsSupersetOf({"a & b", "2 devices", "1", "2", "4", "gpipe", "pipeline.split_size",
                            "seconds per step", "measured", "predicted", "1.50"}));
  // The prediction and its sample in the legend.
  EXPECT_EQ(paths_with(svg, "5 4"), 2u);
  // The curve, its sample, and two error bars of three strokes each. The middle point has no error
  // bar.
  EXPECT_EQ(paths_with(svg, "none"), 8u);
  EXPECT_EQ(find_all(parse_xml(svg), "circle").size(), 6u);
}

TEST(Chart, LeavesGapForMissingMeasurement) {
  Chart chart = curves();
  chart.series[0].points[1] = {.value = std::numeric_limits<double>::quiet_NaN()};
  for (ChartPoint& point : chart.series[0].points) point.predicted.reset();
  const std::string svg = to_svg(chart);
  EXPECT_EQ(find_all(parse_xml(svg), "circle").size(), 2u);
  EXPECT_THAT(words_of(svg), Not(Contains("predicted")));
  for (ChartPoint& point : chart.series[0].points)
    point = {.value = std::numeric_limits<double>::quiet_NaN()};
  EXPECT_NO_THROW(to_svg(chart));
  EXPECT_NO_THROW(to_pixels(chart));
}

TEST(Chart, BarLengthsAreProportionalToValues) {
  Chart chart = curves();
  chart.kind = Chart::Kind::Bars;
  chart.labels = {"single device", "model parallel", "pipelined"};
  chart.series[0].points = {{2, 2, 2, {}}, {4, 3.5, 4.5, 4.2}, {1, 1, 1, {}}};
  const std::string svg = to_svg(chart);
  std::vector<double> lengths;
  const XmlElement root = parse_xml(svg);
  for (const auto* box : find_all(root, "rect"))
    if (box->attribute("class") != "background")
      lengths.push_back(std::stod(box->attribute("width")));
  ASSERT_EQ(lengths.size(), 3u);
  EXPECT_NEAR(lengths[1], 2 * lengths[0], 0.02);
  EXPECT_NEAR(lengths[2], lengths[0] / 2, 0.02);
  EXPECT_THAT(words_of(svg), IsSupersetOf({"model parallel", "4.00", "2.00", "1.00"}));
}

TEST(Chart, PixelsShowSameContent) {
  Chart chart = curves();
  chart.kind = Chart::Kind::Bars;
  const data::Image image = to_pixels(chart);
  EXPECT_EQ(image.width, 1640);
  EXPECT_EQ(image.channels, 3);
  const auto count = [&](Colour colour) {
    std::int64_t pixels = 0;
    for (int y = 0; y < image.height; ++y)
      for (int x = 0; x < image.width; ++x)
        pixels += Colour{image.at(x, y, 0), image.at(x, y, 1), image.at(x, y, 2)} == colour;
    return pixels;
  };
  EXPECT_GT(count({0x9e, 0xc9, 0xec}), 20'000) << "the bars";
  EXPECT_GT(count({0x1d, 0x27, 0x33}), 500) << "the text";
  EXPECT_GT(count(white), 500'000);
}

TEST(Chart, RefusesInconsistentData) {
  Chart chart = curves();
  chart.labels.pop_back();
  EXPECT_THROW(to_svg(chart), UsageError);
  chart = curves();
  chart.kind = Chart::Kind::Bars;
  chart.series.push_back(chart.series[0]);
  EXPECT_THROW(to_pixels(chart), UsageError);
}

TEST(Canvas, DrawsSmoothLinesOfRequestedWidth) {
  Canvas canvas(40, 20);
  canvas.line(5, 10, 35, 10, 4, ink);
  EXPECT_EQ(canvas.image().at(20, 9, 0), ink[0]);
  EXPECT_EQ(canvas.image().at(20, 10, 0), ink[0]);
  EXPECT_EQ(canvas.image().at(20, 4, 0), 255);
  EXPECT_EQ(canvas.image().at(20, 15, 0), 255);
  canvas.line(-50, -50, 90, 70, 3, alarm);  // beyond the edges
  canvas.line(20, 5, 20, 5, 6, alarm);      // a dot
  EXPECT_EQ(canvas.image().at(20, 5, 0), alarm[0]);
}

}  // namespace
}  // namespace trestle::view
