#include "trestle/mesh/layout/mesh_layout.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"

namespace trestle::mesh {
namespace {

using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;
using Names = std::vector<std::string>;

const MeshLayout hsdp({{"replicate", 2}, {"shard", 4}});

TEST(MeshLayout, HasGroupsOfTwoByFourMesh) {
  EXPECT_EQ(hsdp.size(), 8);
  EXPECT_EQ(hsdp.size("shard"), 4);
  EXPECT_EQ(hsdp.coordinates(6), (std::vector<int>{1, 2}));
  EXPECT_EQ(hsdp.coordinate(6, "replicate"), 1);
  EXPECT_EQ(hsdp.rank({1, 2}), 6);
  EXPECT_EQ(hsdp.groups({"shard"}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(hsdp.groups({"replicate"}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(hsdp.groups({"replicate", "shard"}), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(hsdp.group_of(6, {"replicate"}), (std::vector<int>{2, 6}));
}

TEST(MeshLayout, ListsAllGroupsInOneOrder) {
  const auto all = hsdp.all_groups();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].first, "replicate");
  EXPECT_EQ(all[0].second.size() + all[1].second.size(), 6u);
}

TEST(MeshLayout, DrawsRanks) {
  EXPECT_EQ(hsdp.picture(),
            "              shard\n"
            "              0 1 2 3\n"
            "replicate 0   0 1 2 3\n"
            "          1   4 5 6 7\n");
  EXPECT_EQ(MeshLayout({{"shard", 3}}).picture(), "shard\n0 1 2\n0 1 2\n");
  EXPECT_EQ(MeshLayout({{"pipeline", 2}, {"r", 2}, {"s", 3}}).picture(),
            "pipeline 0\n"
            "      s\n"
            "       0  1  2\n"
            "r 0    0  1  2\n"
            "  1    3  4  5\n"
            "\n"
            "pipeline 1\n"
            "      s\n"
            "       0  1  2\n"
            "r 0    6  7  8\n"
            "  1    9 10 11\n");
}

TEST(MeshLayout, FlattensDimensions) {
  const MeshLayout mesh = MeshLayout({{"p", 2}, {"r", 2}, {"s", 3}})
                              .flattened({"r", "s"}, "data")
                              .flattened({"p", "s"}, "ps");
  EXPECT_EQ(mesh.size("data"), 6);
  EXPECT_EQ(mesh.groups({"data"}), (Groups{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(mesh.groups({"ps"}), (Groups{{0, 1, 2, 6, 7, 8}, {3, 4, 5, 9, 10, 11}}));
  EXPECT_EQ(mesh.coordinate(10, "data"), 4);
  EXPECT_EQ(mesh.coordinate(10, "ps"), 4);
  EXPECT_EQ(mesh.groups({"p", "data"}).size(), 1u);
  Names names;
  for (const auto& [name, groups] : mesh.all_groups()) names.push_back(name);
  EXPECT_EQ(names, (Names{"p", "r", "s", "data", "ps"}));
  EXPECT_FALSE(hsdp == hsdp.flattened({"shard"}, "other"));
}

TEST(MeshLayout, SlicesKeepRankNumbers) {
  const MeshLayout mesh = MeshLayout({{"p", 2}, {"r", 2}, {"s", 3}})
                              .flattened({"r", "s"}, "data")
                              .flattened({"p", "s"}, "ps");
  const MeshLayout slice = mesh.slice(9, {"r", "s"});
  EXPECT_EQ(slice.to_text(), "r=2,s=3");
  EXPECT_EQ(slice.ranks(), (std::vector<int>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(slice.groups({"s"}), (Groups{{6, 7, 8}, {9, 10, 11}}));
  EXPECT_EQ(slice.coordinates(10), (std::vector<int>{1, 1}));
  EXPECT_TRUE(slice.has("data"));
  EXPECT_FALSE(slice.has("ps"));
  EXPECT_THROW(slice.coordinates(0), UsageError);
  EXPECT_EQ(mesh.slice(9, {"data"}), slice);
  EXPECT_THAT(slice.picture(), HasSubstr("r 0    6  7  8\n"));
}

TEST(MeshLayout, IsParsedAndPrinted) {
  EXPECT_EQ(hsdp.to_text(), "replicate=2,shard=4");
  EXPECT_EQ(parse_mesh("replicate=2,shard=4"), hsdp);
  EXPECT_EQ(parse_mesh(" replicate = 2 , shard = 4 "), hsdp);
  for (const char* wrong : {"", "=", "a", "a=", "a=x", "a=0", "a=-1", "a=2,", "a=2,a=2", "2=a",
                            "a b=2", "a=2;b=3", "a=99999999999", "a=1000,b=1001", "a=2=3"})
    EXPECT_THROW(parse_mesh(wrong), UsageError) << wrong;
}

TEST(MeshLayout, ExplainsInvalidRequests) {
  EXPECT_THAT(message_of<UsageError>([] { hsdp.check_size(6); }),
              AllOf(HasSubstr("replicate=2,shard=4 has 2 x 4 = 8 ranks, but there are 6"),
                    HasSubstr("With shard=3 it has 6.")));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.check_size(4); }),
              HasSubstr("With replicate=1 or shard=2 it has 4."));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.check_size(7); }), HasSubstr("Start 8 ranks"));
  EXPECT_EQ(message_of<UsageError>([] { hsdp.check_size(8); }), "nothing was thrown");
  EXPECT_THAT(message_of<UsageError>([] { hsdp.size("shart"); }),
              HasSubstr("did you mean 'shard'?"));
  EXPECT_THAT(message_of<UsageError>([] {
                hsdp.groups({"shard", "replicate"});
              }),
              HasSubstr("order"));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.groups({"shard", "shard"}); }), HasSubstr("twice"));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.groups({}); }),
              HasSubstr("at least one mesh dimension"));
  EXPECT_THAT(message_of<UsageError>([] {
                hsdp.flattened({"replicate", "shard"}, "shard");
              }),
              HasSubstr("already"));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.flattened({"shard"}, "a-b"); }),
              HasSubstr("'a-b' is not a valid name"));
  EXPECT_THAT(message_of<UsageError>([] {
                hsdp.rank({0, 4});
              }),
              HasSubstr("coordinate 4 along 'shard'"));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.rank({0}); }), HasSubstr("1 coordinates"));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.coordinates(8); }),
              HasSubstr("rank 8 is not in the mesh"));
  EXPECT_THAT(message_of<UsageError>([] { hsdp.slice(8, {"shard"}); }), HasSubstr("rank 8"));
  EXPECT_THAT(message_of<UsageError>([] { MeshLayout({}); }), HasSubstr("at least one"));
}

MeshLayout random_mesh(Random& random) {
  std::vector<Dimension> dimensions;
  const std::size_t count = 1 + random.below(4);
  for (std::size_t i = 0; i < count; ++i)
    dimensions.push_back({text("d", i), static_cast<int>(1 + random.below(4))});
  return MeshLayout(std::move(dimensions));
}

// Some dimension names, in the mesh's order.
Names random_names(const MeshLayout& mesh, Random& random) {
  Names names;
  for (const Dimension& dimension : mesh.dimensions())
    if (random.below(2) == 0) names.push_back(dimension.name);
  if (names.empty()) names.push_back(mesh.dimensions()[0].name);
  return names;
}

TEST(MeshLayoutProperties, HoldForRandomMeshes) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const MeshLayout mesh = random_mesh(random);
    EXPECT_EQ(parse_mesh(mesh.to_text()), mesh);
    for (const int rank : mesh.ranks()) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
    const Names names = random_names(mesh, random);
    const MeshLayout flat = mesh.flattened(names, "flat");
    const Groups groups = mesh.groups(names);
    EXPECT_EQ(flat.groups({"flat"}), groups);
    EXPECT_TRUE(std::is_sorted(groups.begin(), groups.end()));
    std::set<int> all;
    for (const auto& group : groups) {
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_EQ(static_cast<int>(group.size()), flat.size("flat"));
      for (std::size_t place = 0; place < group.size(); ++place) {
        const int rank = group[place];
        all.insert(rank);
        EXPECT_EQ(mesh.group_of(rank, names), group);
        EXPECT_EQ(flat.coordinate(rank, "flat"), static_cast<int>(place));
        // Ranks of one group differ only in the named dimensions.
        for (const Dimension& dimension : mesh.dimensions()) {
          if (std::find(names.begin(), names.end(), dimension.name) == names.end()) {
            EXPECT_EQ(mesh.coordinate(rank, dimension.name),
                      mesh.coordinate(group[0], dimension.name));
          }
        }
      }
    }
    EXPECT_EQ(static_cast<int>(all.size()), mesh.size());
    const int rank = static_cast<int>(random.below(static_cast<std::size_t>(mesh.size())));
    const MeshLayout slice = mesh.slice(rank, names);
    EXPECT_EQ(slice.ranks(), mesh.group_of(rank, names));
    EXPECT_EQ(slice.group_of(rank, {names[0]}), mesh.group_of(rank, {names[0]}));
  }
}

}  // namespace
}  // namespace trestle::mesh
