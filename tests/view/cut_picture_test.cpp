#include "trestle/view/cut_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"

namespace trestle::view {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CutPicture picture_of(int layers, std::vector<int> balance, const std::string& name = "layer") {
  CutPicture picture{.title = "a net"};
  for (int i = 0; i < layers; ++i)
    picture.layers.push_back({.name = name + std::to_string(i),
                              .forward = 1e-3 * (i + 1),
                              .backward = 2e-3 * (i % 7),
                              .weights = 1000 * (i % 5),
                              .kept = 3000 * ((i + 2) % 4)});
  for (std::size_t s = 0; s < balance.size(); ++s)
    picture.stages.push_back({.device = "virtual:" + std::to_string(s), .layers = balance[s]});
  return picture;
}

TEST(CutPictures, DrawARowForEachLayerAndALineForEachCut) {
  for (const auto& [layers, balance] : std::vector<std::pair<int, std::vector<int>>>{
           {5, {3, 2}}, {60, {20, 10, 1, 29}}, {1, {1}}}) {
    CutPicture picture = picture_of(layers, balance);
    if (layers > 4) picture.skips = {{.from = 0, .to = 2}, {.from = 1, .to = 4}};
    const XmlElement root = parse_xml(to_svg_cut(picture));
    EXPECT_EQ(find_all(root, "g", "layer").size(), static_cast<std::size_t>(layers));
    EXPECT_EQ(find_all(root, "g", "stage").size(), balance.size());
    EXPECT_EQ(find_all(root, "path", "cut").size(), balance.size() - 1);
    EXPECT_EQ(find_all(root, "path", "skip").size(), picture.skips.size());
    EXPECT_EQ(find_all(root, "path", "crossing").size(), layers == 5 ? 1u : 0u);  // 1 to 4 of 3|2
    // Nothing is outside of the picture, and no rows overlap.
    double last = 0;
    for (const XmlElement* name : find_all(root, "text", "name")) {
      EXPECT_GE(number(*name, "y"), last + 16);
      last = number(*name, "y");
    }
    EXPECT_LT(last, number(root, "height"));
    for (const XmlElement* bar : find_all(root, "rect", "bar"))
      EXPECT_LT(number(*bar, "x") + number(*bar, "width"), number(root, "width"));
  }
}

TEST(CutPictures, DrawBarsInProportionToTimes) {
  CutPicture picture = picture_of(2, {1, 1});
  picture.layers[0] = {.name = "a", .forward = 1, .backward = 2};
  picture.layers[1] = {.name = "b", .forward = 4, .backward = 2};
  const auto root = parse_xml(to_svg_cut(picture));
  const auto bars = find_all(root, "rect", "bar");
  ASSERT_EQ(bars.size(), 4u);  // no bytes
  EXPECT_NEAR(number(*bars[1], "width"), 2 * number(*bars[0], "width"), 0.02);
  EXPECT_NEAR(number(*bars[2], "width"), 4 * number(*bars[0], "width"), 0.04);
  EXPECT_NE(bars[0]->attribute("fill"), bars[1]->attribute("fill"));  // forward and backward
  EXPECT_NE(bars[0]->attribute("fill"), bars[2]->attribute("fill"));  // of another stage
}

TEST(CutPictures, ShowTheTotalsOfAStage) {
  CutPicture picture = picture_of(3, {2, 1});
  picture.subtitle = "gpipe";
  for (auto& layer : picture.layers) layer = {.name = "x", .forward = 0.1, .backward = 0.2};
  picture.stages[0].peak = 3 << 20;
  picture.stages[0].budget = 4 << 20;
  const auto words = texts(parse_xml(to_svg_cut(picture)));
  EXPECT_THAT(words, Contains("a net"));
  EXPECT_THAT(words, Contains("gpipe"));
  EXPECT_THAT(words, Contains("stage 0 · virtual:0"));
  EXPECT_THAT(words, Contains("2 layers"));
  EXPECT_THAT(words, Contains("600 ms · 133 % of ideal"));
  EXPECT_THAT(words, Contains("300 ms · 67 % of ideal"));
  EXPECT_THAT(words, Contains("peak 3.0 MiB of 4.0 MiB"));
  EXPECT_THAT(words, Contains("time of one micro-batch, ms"));
  EXPECT_THAT(words, Contains(StartsWith("memory, ")));
  for (const char* legend : {"forward", "backward", "weights", "kept for the backward"})
    EXPECT_THAT(words, Contains(legend));
}

TEST(CutPictures, EscapeNamesAndShortenLongOnes) {
  CutPicture picture = picture_of(1, {1});
  picture.layers[0].name = "<a & \"b\">";
  picture.title = "x < y";
  EXPECT_THAT(texts(parse_xml(to_svg_cut(picture))), Contains("<a & \"b\">"));

  std::string long_name = "encoder.";
  for (int i = 0; i < 30; ++i) long_name += "bläck.";
  long_name += "conv";
  picture.layers[0].name = long_name;
  const XmlElement root = parse_xml(to_svg_cut(picture));
  const std::string shown = find_all(root, "text", "name")[0]->text;
  EXPECT_THAT(shown, StartsWith("encoder."));
  EXPECT_THAT(shown, HasSubstr("…"));
  EXPECT_TRUE(shown.ends_with("conv")) << shown;
  EXPECT_LT(shown.size(), 60u);
  EXPECT_THAT(shown, Not(HasSubstr("\uFFFD")));  // no character is cut
  EXPECT_THAT(find_all(root, "title").back()->text, StartsWith(long_name + ": forward "));
}

TEST(CutPictures, DrawModelsWithoutCosts) {
  parse_xml(to_svg_cut({}));
  CutPicture picture = picture_of(2, {2});
  for (auto& layer : picture.layers) layer = {.name = ""};
  parse_xml(to_svg_cut(picture));
}

TEST(CutPictures, RejectInvalidPictures) {
  EXPECT_THROW(to_svg_cut(picture_of(3, {2})), UsageError);
  EXPECT_THROW(to_svg_cut(picture_of(3, {2, 2})), UsageError);
  EXPECT_THROW(to_svg_cut(picture_of(3, {3, 0})), UsageError);
  EXPECT_THROW(to_svg_cut(picture_of(3000, {3000})), UsageError);
  CutPicture picture = picture_of(3, {3});
  for (const CutPicture::Skip skip : {CutPicture::Skip{0, 3}, {2, 1}, {-1, 1}}) {
    picture.skips = {skip};
    EXPECT_THROW(to_svg_cut(picture), UsageError);
  }
}

}  // namespace
}  // namespace trestle::view
