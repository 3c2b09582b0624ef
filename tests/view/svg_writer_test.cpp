#include "trestle/view/svg_writer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"

namespace trestle::view {
namespace {

TEST(SvgWriter, EscapesTextAndAttributes) {
  SvgWriter svg({.width = 10, .height = 10, .title = "a<b & \"c\" 'd'"});
  svg.text(1, 2, "</text><script>&", {{"data", "\"><x y='"}});
  const XmlElement root = parse_xml(std::move(svg).finish());
  EXPECT_EQ(root.attribute("aria-label"), "a<b & \"c\" 'd'");
  const auto texts = find_all(root, "text");
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0]->text, "</text><script>&");
  EXPECT_EQ(texts[0]->attribute("data"), "\"><x y='");
}

TEST(SvgWriter, KeepsUtf8AndReplacesWhatXmlForbids) {
  EXPECT_EQ(xml_escape("4 × 33 · äß 😀"), "4 × 33 · äß 😀");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(xml_escape(std::string("a\0b", 3)), "a" + bad + "b");
  EXPECT_EQ(xml_escape("\x1b[31m"), bad + "[31m");
  EXPECT_EQ(xml_escape("\xff"), bad);
  EXPECT_EQ(xml_escape("\xc3"), bad);                                // truncated
  EXPECT_EQ(xml_escape("\xc0\xaf"), bad + bad);                      // overlong
  EXPECT_EQ(xml_escape("\xe0\x80\xaf"), bad + bad + bad);            // overlong
  EXPECT_EQ(xml_escape("\xed\xa0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(xml_escape("\xef\xbf\xbf"), bad + bad + bad);            // U+FFFF
  EXPECT_EQ(xml_escape("\xf4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
}

TEST(SvgWriter, WritesShortNumbers) {
  EXPECT_EQ(svg_number(12.5), "12.5");
  EXPECT_EQ(svg_number(3), "3");
  EXPECT_EQ(svg_number(-0.001), "0");
  EXPECT_EQ(svg_number(1.0 / 3), "0.33");
  EXPECT_EQ(svg_number(NAN), "0");
  EXPECT_EQ(svg_number(INFINITY), "0");
}

TEST(SvgWriter, ClosesOpenElements) {
  SvgWriter svg({.width = 10, .height = 20, .title = {}});
  svg.open("g");
  svg.open("g");
  svg.element("path", {{"d", Path().move(0, 0).line(1, 1).curve(1, 2, 3, 4, 5, 6).close().text()}});
  const XmlElement root = parse_xml(std::move(svg).finish());
  EXPECT_EQ(find_all(root, "g").size(), 2u);
  EXPECT_EQ(find_all(root, "path")[0]->attribute("d"), "M0 0L1 1C1 2 3 4 5 6Z");
  EXPECT_EQ(root.attribute("viewBox"), "0 0 10 20");
}

TEST(XmlCheck, RejectsMalformedXml) {
  for (const char* bad : {"", "<a>", "<a></b>", "<a x=\"1\" x=\"2\"/>", "<a>&nbsp;</a>", "<a/><b/>",
                          "<a b=c/>", "<a>\x01</a>", "<a x=\"<\"/>"}) {
    EXPECT_THROW(parse_xml(bad), FormatError) << bad;
  }
}

}  // namespace
}  // namespace trestle::view
