#include "trestle/view/svg.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "tests/view/samples.h"
#include "tests/view/xml_check.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"

namespace trestle::view {
namespace {

using schedule::Timeline;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t cells(const XmlElement& root, const std::string& letter) {
  std::size_t count = 0;
  for (const XmlElement* cell : find_all(root, "rect", "cell")) {
    count += cell->attribute("class") == "cell " + letter;
  }
  return count;
}

TEST(Svg, HasACellForEachActionAndALabelForEachCell) {
  const XmlElement root = parse_xml(to_svg({samples::unit("1f1b", 4, 8)}, {.title = "1F1B"}));
  EXPECT_EQ(cells(root, "F"), 32u);
  EXPECT_EQ(cells(root, "B"), 32u);
  ASSERT_EQ(find_all(root, "g", "labels").size(), 1u);
  EXPECT_EQ(find_all(root, "g", "labels")[0]->children.size(), 64u);
  EXPECT_THAT(texts(root), AllOf(Contains("1F1B"), Contains("rank 3"), Contains("stage 3"),
                                 Contains("forward"), Contains("backward"), Contains("idle"),
                                 Contains("slots"), Contains("peak 4 live")));
}

TEST(Svg, ReportsIdleTimeInBothDefinitions) {
  const XmlElement root = parse_xml(to_svg({samples::unit("1f1b", 4, 8)}));
  ASSERT_EQ(find_all(root, "text", "facts").size(), 1u);
  EXPECT_THAT(find_all(root, "text", "facts")[0]->text,
              AllOf(HasSubstr("idle 27.3 % of the makespan"), HasSubstr("37.5 % of the ideal time"),
                    HasSubstr("33 slots")));
}

TEST(Svg, IdleAndCellsFillEachRowWithoutOverlap) {
  const XmlElement root = parse_xml(to_svg({samples::unit("1f1b", 4, 8)}));
  std::map<double, double> covered;  // by row
  for (const char* kind : {"cell", "idle"}) {
    for (const XmlElement* rect : find_all(root, "rect", kind)) {
      covered[number(*rect, "y")] += number(*rect, "width") + 1;
    }
  }
  ASSERT_EQ(covered.size(), 4u);
  for (const auto& [y, width] : covered) EXPECT_NEAR(width, 644, 0.5) << "row at " << y;
}

// Communication that overlaps computation does not hide it: it is a strip at the lower edge without
// a label.
TEST(Svg, DrawsOverlappingCommunicationAsStrips) {
  Timeline timeline = samples::unit("1f1b", 2, 2);
  const auto add = [&](schedule::Kind kind, double begin, double end) {
    timeline.events.push_back({.rank = 0, .action = {.kind = kind}, .begin = begin, .end = end});
  };
  const double end = schedule::makespan(timeline);
  add(schedule::Kind::ReduceGrad, 0.25, 0.75);     // overlaps the first forward
  add(schedule::Kind::ReduceGrad, 0.5, end + 1);   // until after everything else
  add(schedule::Kind::Unshard, end + 1, end + 5);  // overlaps nothing
  add(schedule::Kind::Unshard, end + 4, end + 6);  // overlaps the previous one
  const XmlElement root = parse_xml(to_svg({timeline}));
  std::map<std::string, std::vector<double>> heights;
  for (const XmlElement* cell : find_all(root, "rect", "cell"))
    heights[cell->attribute("class")].push_back(number(*cell, "height"));
  ASSERT_EQ(heights["cell G"].size(), 2u);
  for (const double height : heights["cell G"]) EXPECT_LT(height, heights["cell F"].at(0) / 2);
  EXPECT_THAT(heights["cell U"],
              ::testing::UnorderedElementsAre(heights["cell F"].at(0), heights["cell G"].at(0)));
  EXPECT_THAT(texts(root), AllOf(Contains("unshard"), Not(Contains("reduce"))));
}

TEST(Svg, DrawsAnArrowForEachSkipAndADashedOneForItsGradient) {
  const XmlElement root = parse_xml(to_svg({samples::gpipe_with_skips()}));
  EXPECT_EQ(find_all(root, "g", "skip").size(), 8u);
  const auto gradients = find_all(root, "g", "skip-gradient");
  ASSERT_EQ(gradients.size(), 8u);
  for (const XmlElement* gradient : gradients) {
    EXPECT_NE(gradient->children.at(1).attribute("stroke-dasharray"), "none");
  }
  EXPECT_EQ(cells(root, "R"), 6u);
  EXPECT_THAT(texts(root), AllOf(Contains("skips s1, s2"), Contains("recompute")));
  const XmlElement without =
      parse_xml(to_svg({samples::gpipe_with_skips()}, {.skips = SkipArrows::Hide}));
  EXPECT_TRUE(find_all(without, "g", "skip").empty());
  EXPECT_THAT(texts(without), Not(Contains("skips s1, s2")));
}

TEST(Svg, PanelsShareTheTimeAxisAndTheMemoryScale) {
  const Timeline simulated = samples::unet();
  const Timeline measured = samples::measured(simulated);
  const XmlElement root = parse_xml(to_svg({simulated, measured}, {.title = "unet_quick"}));
  EXPECT_EQ(find_all(root, "g", "panel").size(), 2u);
  EXPECT_EQ(find_all(root, "g", "axis").size(), 1u);
  EXPECT_EQ(find_all(root, "g", "memory").size(), 4u);
  EXPECT_EQ(find_all(root, "circle", "peak").size(), 4u);
  EXPECT_THAT(texts(root), AllOf(Contains("simulated"), Contains("measured"), Contains("ms"),
                                 Contains("memory")));
  const auto forwards = find_all(root, "rect", "cell");
  EXPECT_NEAR(number(*forwards.front(), "x"), number(*forwards[forwards.size() / 2], "x"), 0.6);
}

TEST(Svg, HostsHaveARowWithWhatLeavesThem) {
  const Timeline simulated = samples::unet_over_hosts();
  Timeline measured = samples::measured(simulated);
  measured.crossings.clear();
  add_measured_crossings(&measured, simulated.host_of_rank);
  const XmlElement root = parse_xml(to_svg({simulated, measured}));
  ASSERT_EQ(find_all(root, "g", "host").size(), 4u);
  // An activation and two skips, or their gradients, of each of four micro-batches.
  for (const XmlElement* host : find_all(root, "g", "host"))
    EXPECT_EQ(find_all(*host, "rect", "crossing").size(), 12u);
  EXPECT_THAT(texts(root), AllOf(Contains("from host 0"), Contains("from host 1")));
  EXPECT_TRUE(find_all(parse_xml(to_svg({samples::unet()})), "g", "host").empty());
}

TEST(Svg, DrawsMessagesOfTensorRanksAsStripsOfTheirActions) {
  const Timeline timeline = samples::over_tensor_ranks();
  const XmlElement root = parse_xml(to_svg({timeline}));
  EXPECT_EQ(find_all(root, "rect", "exposed").size(), timeline.tensor_messages.size());
  EXPECT_EQ(find_all(root, "rect", "hidden").size(), timeline.tensor_messages.size() / 2);
  EXPECT_THAT(texts(root), AllOf(Contains("message of tensor ranks, waited for"),
                                 Contains("hidden behind computation"),
                                 Contains(HasSubstr("27.3 % exposed, 9.1 % hidden"))));
  EXPECT_TRUE(find_all(parse_xml(to_svg({samples::unet()})), "g", "tensor").empty());
}

TEST(Svg, HidesNumbersThatDoNotFit) {
  const XmlElement root = parse_xml(to_svg({samples::unit("1f1b", 8, 32)}, {.width = 500}));
  EXPECT_EQ(cells(root, "F"), 256u);
  EXPECT_TRUE(find_all(root, "g", "labels")[0]->children.empty());
  EXPECT_EQ(root.attribute("width"), "500");
}

TEST(Svg, IsWideEnoughForEightRanksAndThirtyTwoMicroBatches) {
  const XmlElement root = parse_xml(to_svg({samples::unit("1f1b", 8, 32)}));
  EXPECT_EQ(find_all(root, "g", "labels")[0]->children.size(), 512u);
  EXPECT_LE(number(root, "width"), 2400);
}

TEST(Svg, KeepsTextInsideThePicture) {
  Timeline everything = samples::gpipe_with_skips();
  for (int kind = 0; kind <= static_cast<int>(schedule::Kind::Step); ++kind) {
    const double begin = 30 + kind;
    everything.events.push_back({.rank = 0,
                                 .action = {.kind = static_cast<schedule::Kind>(kind)},
                                 .begin = begin,
                                 .end = begin + 1});
  }
  for (const Timeline& timeline : {samples::unit("1f1b", 8, 32), samples::unet(), everything}) {
    const XmlElement root = parse_xml(to_svg({timeline}));
    for (const XmlElement* element : find_all(root, "text")) {
      const bool legend = element->attribute("font-size") == "11.5";
      const double width = legend ? text_width(element->text, 11.5) : 0;
      EXPECT_LT(number(*element, "x") + width, number(root, "width")) << element->text;
      EXPECT_LT(number(*element, "y"), number(root, "height")) << element->text;
    }
  }
}

TEST(Svg, WrapsALongLegend) {
  const XmlElement narrow = parse_xml(to_svg({samples::gpipe_with_skips()}, {.width = 480}));
  std::set<std::string> lines;
  for (const XmlElement* label : find_all(*find_all(narrow, "g", "legend").at(0), "text")) {
    lines.insert(label->attribute("y"));
    EXPECT_LT(number(*label, "x") + text_width(label->text, 11.5), 480) << label->text;
  }
  EXPECT_EQ(lines.size(), 2u);
}

TEST(Svg, EscapesNamesAndTitles) {
  Timeline timeline = samples::gpipe_with_skips();
  timeline.title = "<measured & \"more\">";
  for (auto& route : timeline.routes) route.name = "</title><script>";
  const XmlElement root = parse_xml(to_svg({timeline}, {.title = "R&D <1>"}));
  EXPECT_TRUE(find_all(root, "script").empty());
  EXPECT_THAT(texts(root), AllOf(Contains("R&D <1>"), Contains(timeline.title)));
}

TEST(Svg, DrawsIrregularTimelines) {
  EXPECT_NO_THROW(parse_xml(to_svg({})));
  EXPECT_NO_THROW(parse_xml(to_svg({Timeline{}})));
  Timeline odd = samples::by_hand();
  odd.events.push_back({.rank = 9, .action = schedule::forward(0, 0), .begin = 0, .end = 1});
  odd.events.push_back({.rank = -1, .action = schedule::forward(0, 0), .begin = 0, .end = 1});
  odd.events.push_back(
      {.rank = 0, .action = schedule::forward(0, 0), .begin = NAN, .end = INFINITY});
  odd.memory = {{.rank = 5, .time = 0, .bytes = 10}, {.rank = 0, .time = NAN, .bytes = 10}};
  odd.rank_of_stage = {};
  EXPECT_NO_THROW(parse_xml(to_svg({odd})));
}

// DualPipeV has both.
TEST(Svg, BackwardAndInputGradientHaveTheirOwnColours) {
  EXPECT_NE(palette::of_kind(schedule::Kind::Backward),
            palette::of_kind(schedule::Kind::InputGrad));
}

// Letters of a bold title take up to a sixth more than those of text_width().
TEST(Svg, TitlesOfPanelsEndBeforeTheirFacts) {
  Timeline panel = samples::unit("gpipe", 2, 4);
  panel.title = "simulated dualpipev";
  const XmlElement root = parse_xml(to_svg({panel}, {.title = "a picture"}));
  const auto facts = find_all(root, "text", "facts");
  ASSERT_EQ(facts.size(), 1U);
  const double begin = number(facts[0], "x");
  constexpr double margin = 28, font_size = 13.5;
  EXPECT_GT(begin, margin + 1.1 * text_width(panel.title, font_size) + 10);
}

TEST(Svg, MatchesTheGoldenFiles) {
  samples::expect_golden(
      "gpipe_2x4_skips.svg",
      to_svg({samples::gpipe_with_skips()}, {.title = "GPipe · 2 stages · 4 micro-batches"}));
}

}  // namespace
}  // namespace trestle::view
