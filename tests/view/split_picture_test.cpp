#include "trestle/view/split_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/view/samples.h"
#include "tests/view/xml_check.h"
#include "trestle/base/error.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/view/svg_writer.h"

namespace trestle::view {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using SplitTensor = SplitPicture::Tensor;
using SplitPart = SplitPicture::Part;
using SplitKind = SplitPicture::Message::Kind;
using SplitLayout = SplitPicture::Layout;

// The first ranks have one index more where `ranks` does not divide a part.
SplitTensor shared(SplitTensor tensor, int ranks) {
  if (tensor.parts.empty()) tensor.parts = {{.size = tensor.shape[tensor.dimension]}};
  for (int rank = 0; rank < ranks; ++rank) {
    auto& ranges = tensor.held.emplace_back();
    std::int64_t begin = 0;
    for (const SplitPart& part : tensor.parts) {
      const std::int64_t least = part.size / ranks, more = part.size % ranks;
      ranges.push_back({begin + rank * least + std::min<std::int64_t>(rank, more),
                        least + (rank < more ? 1 : 0)});
      begin += part.size;
    }
  }
  return tensor;
}

// A vocabulary of 50,257, and a block with 16 heads, 2 of keys and values.
SplitPicture block_over(int ranks) {
  SplitPicture picture{.title = text("a block over ", ranks, " ranks"),
                       .subtitle = "width 64 · 16 heads",
                       .ranks = ranks};
  SplitPart keys{.size = 8, .heads = 2};
  if (2 % ranks != 0)
    for (int rank = 0; rank < ranks; ++rank) keys.gathered_head.push_back(rank * 2 / ranks);
  SplitPart values = keys;
  keys.name = "k";
  values.name = "v";
  const std::vector<SplitPart> qkv = {{.name = "q", .size = 64, .heads = 16}, keys, values};
  SplitPicture::Step embed{
      .name = "embed",
      .note = "each rank looks up the tokens of its rows",
      .tensors = {shared({.name = "tokens", .shape = {50257, 64}, .is_table = true}, ranks),
                  {.name = "positions", .shape = {128, 64}, .is_table = true}},
      .output = SplitLayout::Terms,
      .after = {.forward = {{SplitKind::AllReduce, "64 numbers per token"}}}};
  SplitPicture::Step norm{
      .name = "norm",
      .note = "layer norm",
      .tensors = {{.name = "weight", .shape = {64}}, {.name = "bias", .shape = {64}}},
      .input = SplitLayout::Tokens,
      .output = SplitLayout::Tokens};
  SplitPicture::Step columns{
      .name = "attention.qkv",
      .note = "queries, keys and values",
      .tensors = {shared({.name = "weight", .shape = {80, 64}, .parts = qkv}, ranks),
                  shared({.name = "bias", .shape = {80}, .parts = qkv}, ranks)},
      .before = {.forward = {{SplitKind::AllGather, "64 numbers per token"}},
                 .backward = {{SplitKind::AllGather, "64 numbers per token, the input again"},
                              {SplitKind::ReduceScatter, "64 numbers per token"}}},
      .output = SplitLayout::Features};
  SplitPicture::Step rows{
      .name = "attention.out",
      .note = "added up",
      .tensors = {shared({.name = "weight",
                          .shape = {64, 64},
                          .dimension = 1,
                          .parts = {{.size = 64, .heads = 16}}},
                         ranks),
                  {.name = "bias", .shape = {64}}},
      .input = SplitLayout::Features,
      .output = SplitLayout::Terms,
      .after = {.forward = {{SplitKind::ReduceScatter, "64 numbers per token"}}}};
  picture.sections = {{.name = "embed", .steps = {embed}},
                      {.name = "blocks.0", .copies = 12, .steps = {norm, columns, rows}}};
  return picture;
}

// Two ranks that share 7 rows, without a block around them.
SplitPicture seven_rows() {
  SplitPicture picture{.title = "seven rows", .ranks = 2};
  picture.sections = {
      {.name = "mlp",
       .steps = {{.name = "up", .tensors = {shared({.name = "weight", .shape = {7, 4}}, 2)}}}}};
  return picture;
}

struct TextBox {
  std::string words;
  double left, right, top, bottom;
};

void collect(const XmlElement& element, double font, std::vector<TextBox>* boxes) {
  if (!element.attribute("font-size").empty()) font = number(element, "font-size");
  if (element.tag == "text" && !element.text.empty()) {
    const double width = text_width(element.text, font);
    const double x =
        number(element, "x") - (element.attribute("text-anchor") == "middle" ? width / 2 : 0);
    const double y = number(element, "y");
    // Digits and capitals are 0.73 of the font's size.
    boxes->push_back({element.text, x, x + width, y - 0.73 * font, y});
  }
  for (const XmlElement& child : element.children) collect(child, font, boxes);
}

bool contains(const XmlElement& root, const XmlElement& inner) {
  return number(inner, "x") >= 0 && number(inner, "y") >= 0 &&
         number(inner, "x") + number(inner, "width") <= number(root, "width") &&
         number(inner, "y") + number(inner, "height") <= number(root, "height");
}

TEST(SplitPictures, WordsNeitherOverlapNorLeaveThePicture) {
  for (const int ranks : {1, 2, 3, 4, 8, 13, 64}) {
    const XmlElement root = parse_xml(to_svg_split(block_over(ranks)));
    std::vector<TextBox> boxes;
    collect(root, 16, &boxes);
    ASSERT_GT(boxes.size(), 30u);
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      EXPECT_GE(boxes[i].left, 0) << boxes[i].words;
      EXPECT_LE(boxes[i].right, number(root, "width")) << boxes[i].words;
      EXPECT_LE(boxes[i].bottom, number(root, "height")) << boxes[i].words;
      for (std::size_t j = 0; j < i; ++j) {
        const bool apart = boxes[i].right <= boxes[j].left || boxes[j].right <= boxes[i].left ||
                           boxes[i].bottom <= boxes[j].top || boxes[j].bottom <= boxes[i].top;
        EXPECT_TRUE(apart) << ranks << " ranks: '" << boxes[i].words << "' and '" << boxes[j].words
                           << "'";
      }
    }
    for (const char* kind : {"tensor", "held", "bar", "section", "mark"})
      for (const XmlElement* box : find_all(root, "rect", kind))
        EXPECT_TRUE(contains(root, *box)) << kind << " of " << ranks << " ranks";
  }
}

TEST(SplitPictures, DrawSlicesInProportionToTheirSizes) {
  const XmlElement root = parse_xml(to_svg_split(seven_rows()));
  const auto slices = find_all(root, "rect", "held");
  ASSERT_EQ(slices.size(), 2u);
  const double height = number(slices[0], "height");
  EXPECT_NEAR(number(slices[1], "height"), height * 3 / 4, 0.02);
  EXPECT_NEAR(number(slices[1], "y"), number(slices[0], "y") + height, 0.02);
  EXPECT_NEAR(number(slices[0], "width"), height, 0.02) << "4 columns, 4 rows of rank 0";
  EXPECT_NE(slices[0]->attribute("fill"), slices[1]->attribute("fill"));
  std::vector<std::string> numbers;
  for (const XmlElement* one : find_all(root, "text", "rank")) numbers.push_back(one->text);
  EXPECT_THAT(numbers, ElementsAre("0", "1"));
  EXPECT_THAT(texts(root), AllOf(Contains("0..3"), Contains("4..6")));
  EXPECT_THAT(texts(root), AllOf(Contains("64 B"), Contains("48 B"), Contains("57.1 %")));
}

TEST(SplitPictures, DrawColumnsBesideOneAnotherAndWholeTensorsInOneColour) {
  const XmlElement root = parse_xml(to_svg_split(block_over(4)));
  const auto held = find_all(root, "rect", "held");
  // tokens; q, k and v with their bias; columns of the output.
  ASSERT_EQ(held.size(), 4u * (1 + 2 * 3 + 1));
  const auto out = held.end() - 4;
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(number(out[rank], "y"), number(out[0], "y"));
    EXPECT_NEAR(number(out[rank], "x"), number(out[0], "x") + rank * number(out[0], "width"), 0.02);
  }
  const auto whole = find_all(root, "rect", "whole");
  ASSERT_EQ(whole.size(), 4u);  // positions, the norm's weight and bias, the bias of the output
  for (const XmlElement* one : whole)
    EXPECT_EQ(one->attribute("fill"), whole[0]->attribute("fill"));
  EXPECT_THAT(texts(root), Contains("whole on every rank · 512 B"));
}

TEST(SplitPictures, NameTheRangesOfUnevenSlices) {
  const auto words = texts(parse_xml(to_svg_split(block_over(4))));
  EXPECT_THAT(words, AllOf(Contains("0..12564"), Contains("12565..25128"), Contains("25129..37692"),
                           Contains("37693..50256")));
  EXPECT_THAT(words, Contains("tokens: height drawn 1340 times shorter"));
  EXPECT_THAT(
      words,
      Contains(
          "each rank looks up the tokens of its rows · tokens 50,257 × 64, positions 128 × 64"));
  EXPECT_THAT(words, Contains("blocks.0, one of 12 alike"));
}

TEST(SplitPictures, NameTheHeadsThatRanksShare) {
  const auto four = texts(parse_xml(to_svg_split(block_over(4))));
  EXPECT_THAT(four, AllOf(Contains("reads head"), Contains("4..7"), Contains("12..15")));
  EXPECT_THAT(four, AllOf(Contains("head 0: ranks 0, 1"), Contains("head 1: ranks 2, 3")));
  const auto two = texts(parse_xml(to_svg_split(block_over(2))));
  EXPECT_THAT(two, AllOf(Contains("q heads"), Contains("k, v heads"), Contains("8..15")));
  EXPECT_THAT(two, Not(Contains(HasSubstr("reads"))));
}

TEST(SplitPictures, DrawABarForEachExchangeAndALineForEachRank) {
  const XmlElement root = parse_xml(to_svg_split(block_over(4)));
  EXPECT_EQ(find_all(root, "rect", "bar").size(), 3u);
  EXPECT_EQ(find_all(root, "text", "message").size(), 5u);
  EXPECT_EQ(find_all(root, "path", "arrow").size(), 5u + 2u);  // two in the legend
  EXPECT_THAT(texts(root), Contains("all-gather of 64 numbers per token, the input again"));
  for (const char* words : {"activations, whole on every rank", "each rank its features",
                            "each rank its tokens", "each rank a term of the sum"})
    EXPECT_THAT(texts(root), Contains(words));
  // The marks of the legend are at the left; the lane has a line for each rank.
  std::size_t coloured = 0;
  const XmlElement* lane = find_all(root, "g", "lane").at(0);
  for (const XmlElement* line : find_all(*lane, "path", "flow"))
    coloured += line->attribute("stroke-width") == "6" ? 0 : 1;
  EXPECT_EQ(coloured % 4, 0u);
  EXPECT_GE(coloured, 4u * 4u);
  EXPECT_THAT(texts(parse_xml(to_svg_split(seven_rows()))), Not(Contains("sent in the forward")));
}

TEST(SplitPictures, AddUpTheBytesOfARank) {
  const SplitPicture picture = block_over(2);
  const SplitTensor& tokens = picture.sections[0].steps[0].tensors[0];
  EXPECT_EQ(bytes_on_rank(tokens, 0), 25129 * 64 * 4);
  EXPECT_EQ(bytes_on_rank(tokens, 1), 25128 * 64 * 4);
  EXPECT_EQ(bytes_on_rank(picture.sections[0].steps[0].tensors[1], 1), 128 * 64 * 4);
  SplitTensor tied = tokens;
  tied.tied_to = "embed.tokens";
  EXPECT_EQ(bytes_on_rank(tied, 0), 0);
  const auto words = texts(parse_xml(to_svg_split(picture)));
  EXPECT_THAT(words, AllOf(Contains("12 like blocks.0"), Contains("of the model"),
                           Contains("Bytes of the parameters on each rank")));
  EXPECT_THAT(words, Contains("6.2 MiB"));
}

TEST(SplitPictures, LeaveOutTheMiddleRanksOfLongTables) {
  const auto all = texts(parse_xml(to_svg_split(block_over(12))));
  EXPECT_THAT(all, Not(Contains("…")));
  const auto some = texts(parse_xml(to_svg_split(block_over(64))));
  EXPECT_THAT(some, AllOf(Contains("…"), Contains("63"), Not(Contains("40"))));
  EXPECT_THAT(some, Contains("rank 7; ranks 8 to 63 repeat the colours"));
}

TEST(SplitPictures, AreTextToo) {
  samples::expect_golden("split_4.txt", to_text_split(block_over(4)));
  for (const std::string& line : split(to_text_split(block_over(4), 60), '\n')) {
    const bool is_message = line.find("numbers per token") != std::string::npos;
    EXPECT_TRUE(!is_message || columns_of(line) <= 60) << line;
  }
}

std::string refusal_of(const SplitPicture& picture) {
  EXPECT_THROW(to_text_split(picture), UsageError);
  try {
    to_svg_split(picture);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "it was drawn";
}

TEST(SplitPictures, RefuseSlicesThatDoNotFit) {
  SplitPicture picture = block_over(2);
  picture.ranks = 3;
  EXPECT_THAT(refusal_of(picture), HasSubstr("'embed.tokens' has slices of 2 of 3 ranks"));
  for (const int ranks : {0, 65}) {
    picture.ranks = ranks;
    EXPECT_THAT(refusal_of(picture), HasSubstr(text("a split over ", ranks, " ranks")));
  }
  const auto changed = [](const auto& change) {
    SplitPicture seven = seven_rows();
    change(seven.sections[0].steps[0].tensors[0]);
    return refusal_of(seven);
  };
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.shape = {}; }), HasSubstr("of shape []"));
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.shape = {7, 0}; }), HasSubstr("[7, 0]"));
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.dimension = 2; }),
              HasSubstr("no dimension 2"));
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.parts[0].size = 6; }),
              HasSubstr("its parts have 6 of 7 rows"));
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.held[1] = {}; }),
              HasSubstr("0 ranges of 1 parts"));
  EXPECT_THAT(changed([](SplitTensor& tensor) {
                tensor.held[1] = {{5, 3}};
              }),
              HasSubstr("the range 5 to 8 is outside"));
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.parts[0].heads = 2; }),
              HasSubstr("a part of 7 with 2 heads"));
  EXPECT_THAT(changed([](SplitTensor& tensor) { tensor.parts[0].gathered_head = {0}; }),
              HasSubstr("gathered heads of 1 of 2 ranks"));
}

}  // namespace
}  // namespace trestle::view
