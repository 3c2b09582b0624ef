#include "trestle/view/mesh_picture.h"

#include <gmock/gmock.h>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"

namespace trestle::view {
namespace {

using testing::ElementsAre;

std::vector<std::string> ranks_in(const XmlElement& picture) {
  std::vector<std::string> ranks;
  for (const XmlElement* element : find_all(picture, "text", "rank"))
    ranks.push_back(element->text);
  return ranks;
}

TEST(MeshPicture, DrawsReplicasAsRowsAndShardsAsColumns) {
  const XmlElement picture =
      parse_xml(to_svg_mesh(mesh::MeshLayout({{"replicate", 2}, {"shard", 4}})));
  EXPECT_THAT(ranks_in(picture), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
  const auto boxes = find_all(picture, "rect");
  std::vector<const XmlElement*> cells;
  for (const XmlElement* box : boxes)
    if (!box->attribute("rx").empty()) cells.push_back(box);
  ASSERT_EQ(cells.size(), 8u);
  EXPECT_EQ(cells[0]->attribute("fill"), cells[3]->attribute("fill"));
  EXPECT_NE(cells[0]->attribute("fill"), cells[4]->attribute("fill"));
  EXPECT_EQ(number(cells[1], "y"), number(cells[0], "y"));
  EXPECT_EQ(number(cells[5], "x"), number(cells[1], "x"));
  EXPECT_GT(number(cells[4], "y"), number(cells[0], "y"));
}

TEST(MeshPicture, StaysInsideThePicture) {
  for (const char* words :
       {"a=1", "shard=3", "replicate=2,shard=4", "pipeline=2,replicate=3,shard=2",
        "a=2,b=2,c=2,d=2", "a_long_name_of_rows=2,and_one_of_columns=1"}) {
    const mesh::MeshLayout layout = mesh::parse_mesh(words);
    const XmlElement picture = parse_xml(to_svg_mesh(layout));
    EXPECT_EQ(ranks_in(picture).size(), static_cast<std::size_t>(layout.size())) << words;
    for (const XmlElement* cell : find_all(picture, "rect")) {
      if (cell->attribute("rx").empty()) continue;
      EXPECT_LE(number(cell, "x") + number(cell, "width"), number(&picture, "width")) << words;
      EXPECT_LE(number(cell, "y") + number(cell, "height"), number(&picture, "height")) << words;
    }
  }
}

TEST(MeshPicture, RejectsTooManyRanks) {
  EXPECT_THROW(to_svg_mesh(mesh::MeshLayout({{"a", 4097}})), UsageError);
}

}  // namespace
}  // namespace trestle::view
