#include "trestle/view/bars.h"

#include <gmock/gmock.h>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"

namespace trestle::view {
namespace {

BarsPicture two_rows() {
  return {.title = "levels",
          .subtitle = "of a net",
          .rows = {{.name = "DDP", .note = "16"}, {.name = "FSDP", .note = "16/N"}},
          .panels = {{.title = "memory",
                      .bars = {{.value = 16, .label = "16.0 MiB", .more = 4, .mark = 16.0},
                               {.value = 4, .label = "4.0 MiB", .mark = 5.0}}},
                     {.title = "time", .bars = {{.value = 2, .label = "2 s"}, {.value = 1}}}},
          .legend = {"at rest", "peak", "formula"}};
}

TEST(BarsPicture, DrawsLengthsInProportionToValues) {
  const XmlElement picture = parse_xml(to_svg_bars(two_rows()));
  const auto bars = find_all(picture, "rect", "bar");
  ASSERT_EQ(bars.size(), 4u);
  EXPECT_NEAR(number(bars[0], "width"), 4 * number(bars[1], "width"), 0.05);
  EXPECT_NEAR(number(bars[2], "width"), 2 * number(bars[3], "width"), 0.05);
  const auto more = find_all(picture, "rect", "more");
  ASSERT_EQ(more.size(), 1u);
  EXPECT_NEAR(number(more[0], "x"), number(bars[0], "x") + number(bars[0], "width"), 0.05);
  EXPECT_NEAR(number(more[0], "width"), number(bars[1], "width"), 0.05);
  EXPECT_EQ(find_all(picture, "path", "mark").size(), 2u);
}

TEST(BarsPicture, StaysInsideThePicture) {
  const XmlElement picture = parse_xml(to_svg_bars(two_rows()));
  for (const XmlElement* box : find_all(picture, "rect"))
    EXPECT_LE((box->attribute("x").empty() ? 0 : number(box, "x")) + number(box, "width"),
              number(&picture, "width"));
  for (const XmlElement* words : find_all(picture, "text"))
    EXPECT_LT(number(words, "y"), number(&picture, "height"));
}

TEST(BarsPicture, DrawsEmptyData) {
  EXPECT_NO_THROW(parse_xml(to_svg_bars({})));
  EXPECT_NO_THROW(parse_xml(to_svg_bars({.rows = {{.name = "a"}}, .panels = {{.bars = {{}}}}})));
  EXPECT_THROW(to_svg_bars({.rows = {{.name = "a"}}, .panels = {{.title = "b"}}}), UsageError);
}

}  // namespace
}  // namespace trestle::view
