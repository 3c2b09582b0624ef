#include "trestle/comm/gather.h"

#include <gtest/gtest.h>

#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/spawn.h"

namespace trestle::comm {
namespace {

struct Row {
  int stage = 0;
  double seconds = 0;
  bool operator==(const Row&) const = default;
};

TEST(Gather, ValuesOfAllTypes) {
  using Value = std::tuple<int, std::string, std::vector<Row>, std::optional<double>,
                           std::pair<std::string, std::vector<std::string>>>;
  const auto value_of = [](int rank) {
    return Value{rank,
                 std::string(static_cast<std::size_t>(rank), '\t'),
                 std::vector<Row>(static_cast<std::size_t>(rank), Row{rank, 0.1 * rank}),
                 rank == 1 ? std::optional<double>(0.1) : std::nullopt,
                 {"a\nb", {"", std::string("\0x", 2), "c"}}};
  };
  const auto all = spawn(
      3, [&](World& world) { return all_gather_values(world.group(), value_of(world.rank())); });
  for (const auto& gathered : all) {
    ASSERT_EQ(gathered.size(), 3U);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(gathered[rank], value_of(rank));
  }
}

TEST(Gather, BroadcastsTheValueOfOneRank) {
  for (const int from : {0, 2}) {
    const auto all = spawn(3, [&](World& world) {
      const auto size = static_cast<std::size_t>(world.rank());
      return broadcast_value(world.group(), std::vector<Row>(size, Row{world.rank(), 0.1}), from);
    });
    for (const auto& value : all)
      EXPECT_EQ(value, std::vector<Row>(static_cast<std::size_t>(from), Row{from, 0.1}));
  }
}

TEST(Gather, MalformedMessageNamesTheRank) {
  const auto errors = spawn(2, [](World& world) -> std::string {
    try {
      if (world.rank() == 0)
        all_gather_values(world.group(), std::vector<std::string>{"a", "b"});
      else  // a vector of 2^56 strings
        world.group().all_gather_bytes(std::string(8, '\1'));
    } catch (const RankError& error) {
      return error.what();
    }
    return "";
  });
  EXPECT_NE(errors[0].find("rank 1 sent a malformed message of 8 bytes"), std::string::npos)
      << errors[0];
}

TEST(Gather, TooManyBytesAreMalformed) {
  Packer packer;
  packer.add(std::pair<int, std::string>(1, "abc"));
  const std::string bytes = packer.take() + "x";
  std::pair<int, std::string> value;
  Unpacker unpacker(bytes);
  unpacker.read(value);
  EXPECT_TRUE(unpacker.ok());
  EXPECT_FALSE(unpacker.at_end());
}

TEST(Gather, TooFewBytesAreMalformed) {
  Packer packer;
  packer.add(std::vector<Row>(3));
  std::string bytes = packer.take();
  for (bytes.pop_back();; bytes.pop_back()) {
    std::vector<Row> value;
    Unpacker unpacker(bytes);
    unpacker.read(value);
    EXPECT_FALSE(unpacker.ok()) << bytes.size();
    if (bytes.empty()) break;
  }
}

TEST(Gather, FindsTheFirstRankThatDiffers) {
  const auto all = spawn(4, [](World& world) {
    return find_difference(world.group(), world.rank() < 2 ? "same" : "rank specific");
  });
  for (const auto& found : all) {
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, 2);
    EXPECT_EQ(found->first, "same");
    EXPECT_EQ(found->other, "rank specific");
  }
  for (const auto& found :
       spawn(2, [](World& world) { return find_difference(world.group(), "same").has_value(); }))
    EXPECT_FALSE(found);
}

TEST(Gather, FindsAClashOfTwoRanks) {
  const auto all = spawn(3, [](World& world) {
    return find_clash(world.group(), {world.rank() == 1 ? "b" : "a", "own", "own"});
  });
  for (const auto& clash : all) {
    ASSERT_TRUE(clash);
    EXPECT_EQ(clash->first, 0);
    EXPECT_EQ(clash->second, 1);
    EXPECT_EQ(clash->value, "own");
  }
  for (const auto& clash : spawn(2, [](World& world) {
         const std::string own = std::to_string(world.rank());
         return find_clash(world.group(), {own, own});
       }))
    EXPECT_FALSE(clash);
}

}  // namespace
}  // namespace trestle::comm
