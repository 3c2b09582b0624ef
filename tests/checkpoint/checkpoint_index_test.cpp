#include "trestle/checkpoint/files/checkpoint_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/checkpoint/files/content_hash.h"
#include "trestle/checkpoint/files/train_state.h"

namespace trestle::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CheckpointIndex some() {
  CheckpointIndex index;
  index.state = R"({"step":12})";
  index.files = {{"weights.rank0.safetensors", 200},
                 {"weights.rank1.safetensors", 200},
                 {"optimizer.rank1.safetensors", 100}};
  index.groups["weights"] = {
      {"z",
       "F32",
       {8, 3},
       {{"weights.rank0.safetensors", {{0, 0}, {8, 1}}, "0123456789abcdef"},
        {"weights.rank1.safetensors", {{0, 1}, {8, 2}}, "0123456789abcdef"}}},
      {"a \"b\"\n", "BF16", {}, {{"weights.rank1.safetensors", {{}, {}}}}},
      {"none", "I64", {0, 4}, {{"weights.rank0.safetensors", {{0, 0}, {0, 4}}}}}};
  index.groups["optimizer"] = {
      {"z", "F64", {2}, {{"optimizer.rank1.safetensors", {{0}, {2}}, "ff"}}}};
  return index;
}

std::string index_error(const std::string& json) {
  try {
    parse_index(json, "last/index.json");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string with(std::string what, const std::string& by) {
  std::string json = format_index(some());
  const auto at = json.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return json.replace(at, what.size(), by);
}

TEST(CheckpointIndex, RoundTrips) {
  EXPECT_EQ(parse_index(format_index(some()), "x"), some());
  EXPECT_EQ(parse_index(format_index({}), "x"), CheckpointIndex());
}

TEST(CheckpointIndex, RejectsInvalidContents) {
  EXPECT_EQ(index_error(format_index(some())), "nothing was thrown");
  EXPECT_THAT(index_error("{"), AllOf(HasSubstr("last/index.json"), HasSubstr("is not JSON")));
  EXPECT_THAT(index_error("{}"), HasSubstr("has no 'format'"));
  EXPECT_THAT(index_error(with("trestle checkpoint", "zip")), HasSubstr("its format is \"zip\""));
  EXPECT_THAT(index_error(with("\"version\": 2", "\"version\": 3")),
              HasSubstr("version 3 of a checkpoint is unknown; this program writes 2"));
  EXPECT_THAT(index_error(with("\"dtype\": \"F32\"", "\"dtype\": \"F31\"")),
              HasSubstr("tensor 'z' has the unknown type 'F31'"));
  EXPECT_THAT(index_error(with("\"none\"", "\"z\"")), HasSubstr("two tensors 'z'"));
  EXPECT_THAT(index_error(with("\"state\": {", "\"state\": {}, \"state\": {")), HasSubstr("twice"));
  EXPECT_THAT(index_error(with("\"bytes\": 200", "\"bytes\": -1")), HasSubstr("has -1 bytes"));
  EXPECT_THAT(index_error(with("\"bytes\": 200", "\"bytes\": 20")),
              HasSubstr("has a box of 32 bytes in 'weights.rank0.safetensors', which has only 20"));
  EXPECT_THAT(index_error(with("[8, 3]", "[4611686018427387904, 4611686018427387904]")),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(index_error(with("[8, 3]", "[0, 4611686018427387904, 4611686018427387904]")),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(index_error(with("[8, 3]", "[8, -3]")), HasSubstr("not a list of sizes"));
  EXPECT_THAT(index_error(with("[8, 3]", "[8, 3.5]")), HasSubstr("not a list of sizes"));
}

TEST(CheckpointIndex, DepthAndDimensionsAreLimited) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_THAT(index_error(with("{\"step\":12}", "{\"a\": " + nested(1'000'000) + "}")),
              HasSubstr("more than 32 levels deep"));
  EXPECT_THAT(index_error(with("\"version\": 2", "\"version\": " + nested(1'000'000))),
              HasSubstr("more than 32 levels deep"));
  EXPECT_EQ(index_error(with("{\"step\":12}", "{\"a\": " + nested(20) + "}")),
            "nothing was thrown");
  std::string ones = "[1";
  for (int i = 1; i < 65; ++i) ones += ", 1";
  EXPECT_THAT(index_error(with("[8, 3]", ones + "]")), HasSubstr("65 dimensions"));
}

TEST(CheckpointIndex, FilesMustBeInTheSameFolder) {
  for (const char* name : {"../x.safetensors", "/x.safetensors", "a/b.safetensors", "",
                           ".safetensors", ".x.safetensors", "..", "x", "a\\\\b.safetensors",
                           "a\\u0000.safetensors", "a\\n.safetensors"})
    EXPECT_THAT(index_error(with("\"files\": {",
                                 std::string("\"files\": {\"") + name + "\": {\"bytes\": 1}, ")),
                HasSubstr("is not a valid file name"))
        << name;
  EXPECT_THAT(
      index_error(with("\"file\": \"weights.rank0", "\"file\": \"../weights.rank0")),
      HasSubstr("is in '../weights.rank0.safetensors', which is not listed among the files"));
  EXPECT_THAT(index_error(with("\"file\": \"optimizer.rank1", "\"file\": \"weights.rank1")),
              HasSubstr("belongs to both 'optimizer' and 'weights'"));
}

TEST(CheckpointIndex, BoxesMustCoverEachElementOnce) {
  const std::string second = "\"offset\": [0, 1], \"sizes\": [8, 2]";
  const std::string begin = "\"offset\": ", sizes = ", \"sizes\": ";
  EXPECT_THAT(index_error(with(second, begin + "[0, 1]" + sizes + "[8, 1]")),
              HasSubstr("no file contains [0:8, 2:3] of tensor 'z'"));
  EXPECT_THAT(index_error(with(second, begin + "[0, 0]" + sizes + "[8, 3]")),
              HasSubstr("[0:8, 0:1] of tensor 'z' is in both 'weights.rank0.safetensors' and "
                        "'weights.rank1.safetensors'"));
  EXPECT_THAT(index_error(with(second, begin + "[0, 1]" + sizes + "[8, 3]")),
              HasSubstr("has a box at [0, 1] of size [8, 3], which exceeds it"));
  EXPECT_THAT(index_error(with(second, begin + "[9223372036854775807, 1]" + sizes + "[8, 2]")),
              HasSubstr("not a list of sizes"));
  EXPECT_THAT(index_error(with(second, begin + "[4611686018427387904, 1]" + sizes + "[8, 2]")),
              HasSubstr("which exceeds it"));
  EXPECT_THAT(index_error(with("weights.rank1.safetensors\", \"offset\": [0, 1]",
                               "weights.rank0.safetensors\", \"offset\": [0, 1]")),
              HasSubstr("has a box in 'weights.rank0.safetensors' with the name 'z', which "
                        "another box has already"));
  EXPECT_NO_THROW(
      parse_index(with(second, begin + "[0, 1]" + sizes + "[8, 1]"), "x", Cover::OneRank));
}

// A rank's shard of a flat buffer may be several boxes of a tensor.
TEST(CheckpointIndex, AFileMayHaveSeveralBoxesWithSeparateKeys) {
  CheckpointIndex index = some();
  index.groups["weights"][0].boxes = {
      {"weights.rank0.safetensors", {{0, 0}, {3, 3}}, "ab"},
      {"weights.rank0.safetensors", {{3, 0}, {1, 2}}, "cd", "z[1]"},
      {"weights.rank1.safetensors", {{3, 2}, {1, 1}}},
      {"weights.rank1.safetensors", {{4, 0}, {4, 3}}, "", "other \"name\""}};
  const std::string json = format_index(index);
  EXPECT_EQ(parse_index(json, "x"), index);
  const auto keyed = [&](const std::string& key) {
    std::string changed = json;
    return changed.replace(changed.find("z[1]"), 4, key);
  };
  EXPECT_THAT(index_error(keyed("z")),
              HasSubstr("with the name 'z', which another box has already"));
  EXPECT_THAT(index_error(keyed("")),
              HasSubstr("with the name 'z', which another box has already"));
  EXPECT_THAT(index_error(keyed("none")),
              AllOf(HasSubstr("tensor 'none'"), HasSubstr("which another box has already")));
  EXPECT_THAT(index_error(json.substr(0, json.find("\"z[1]\"")) + "7" +
                          json.substr(json.find("\"z[1]\"") + 6)),
              HasSubstr("has a key that is not a string"));
}

TEST(CheckpointIndex, IndexesOfRanksAreMerged) {
  const auto shard = [](const char* file, Box box, std::string dtype = "F32",
                        Sizes shape = {8, 3}) {
    CheckpointIndex index;
    index.files[file] = 200;
    index.groups["weights"] = {{"z", std::move(dtype), std::move(shape), {{file, std::move(box)}}}};
    return index;
  };
  const auto merge = [](std::vector<CheckpointIndex> shards) -> std::string {
    try {
      merge_indexes(std::move(shards));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  const CheckpointIndex first = shard("a.safetensors", {{0, 0}, {8, 1}});
  EXPECT_EQ(merge({first, shard("b.safetensors", {{0, 1}, {8, 2}})}), "");
  EXPECT_EQ(merge({first, {}, shard("b.safetensors", {{0, 1}, {8, 2}})}), "");
  EXPECT_THAT(merge({first, {}, shard("b.safetensors", {{2, 1}, {6, 2}})}),
              HasSubstr("no rank saved [0:2, 1:3] of 'z' (F32 [8, 3] of the weights)"));
  EXPECT_THAT(merge({first, {}, shard("b.safetensors", {{0, 0}, {8, 3}})}),
              HasSubstr("rank 0 and rank 2 both saved [0:8, 0:1] of 'z'"));
  EXPECT_THAT(merge({first, shard("b.safetensors", {{0, 1}, {8, 2}}, "F64")}),
              HasSubstr("'z' is F32 [8, 3] on rank 0 and F64 [8, 3] on rank 1"));
  EXPECT_THAT(merge({first, shard("b.safetensors", {{0, 1}, {8, 2}}, "F32", {8, 4})}),
              HasSubstr("'z' is F32 [8, 3] on rank 0 and F32 [8, 4] on rank 1"));
  CheckpointIndex twice = shard("a.safetensors", {{0, 0}, {8, 3}});
  twice.groups["weights"][0].boxes.push_back({"a.safetensors", {{7, 0}, {1, 3}}, "", "z[1]"});
  EXPECT_THAT(merge({twice}), HasSubstr("rank 0 saved [7:8, 0:3] of 'z' (F32 [8, 3] of the "
                                        "weights) twice"));
  EXPECT_THAT(merge({first, shard("a.safetensors", {{0, 1}, {8, 2}})}),
              HasSubstr("rank 1 wrote 'a.safetensors', which another rank wrote too"));
}

TEST(CheckpointIndex, HashesDifferForDifferentContents) {
  std::string bytes(64, '\0');
  std::set<std::string> seen = {content_hash(bytes), content_hash({}), content_hash("x")};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = bytes;
      other[i] = static_cast<char>(1 << bit);
      seen.insert(content_hash(other));
      other[(i + 8) % 64] = static_cast<char>(1 << bit);  // changes the sign of two numbers
      seen.insert(content_hash(other));
    }
  for (std::size_t length = 0; length < 64; ++length)
    seen.insert(content_hash(std::string_view(bytes).substr(0, length)));
  EXPECT_EQ(seen.size(), 2 + 64 + 2 * 512u) << "the zeros of each length, 'x', and the bits";
  EXPECT_EQ(content_hash("what is said stays so"), "121bf20de950f214");
}

TEST(FuzzCheckpointIndex, AcceptedIndexesAreCompleteAndRoundTrip) {
  const std::vector<std::string> seeds = {
      format_index(some()),
      R"({"format":"trestle checkpoint","version":2,"state":{},"files":{"a.safetensors":)"
      R"({"bytes":9}},"tensors":{"w":[{"name":"x","dtype":"U8","shape":[9],"boxes":[{"file":)"
      R"("a.safetensors","offset":[0],"sizes":[4]},{"file":"a.safetensors","offset":[4],)"
      R"("sizes":[5],"key":"y"}]}]}})"};
  const auto result = fuzz::run(seeds, [](std::string_view bytes) {
    const CheckpointIndex index = parse_index(bytes, "fuzz");
    for (const auto& [name, size] : index.files) ASSERT_TRUE(is_shard_file_name(name));
    for (const auto& [group, tensors] : index.groups)
      for (const IndexedTensor& tensor : tensors)
        ASSERT_FALSE(find_cover_fault(tensor.shape, tensor.plain_boxes()));
    ASSERT_EQ(parse_index(format_index(index), "again"), index) << fuzz::literal(bytes);
  });
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 5000);
}

TEST(FuzzTrainState, AcceptedStatesRoundTrip) {
  TrainState state{.step = 12, .epoch = 3, .samples = 40, .seed = ~std::uint64_t{0}};
  state.numbers = {{"loss_sum", 1.0 / 3}, {"plateau_best", -HUGE_VAL}};
  const auto result = fuzz::run(
      {format_state(state), R"({"batch":3,"best_epoch":1,"best_metric":0.5,"epoch":2,"format":1,)"
                            R"("numbers":{"a":1},"recipe_hash":"abc","seed":7,"step":14})"},
      [](std::string_view bytes) {
        TrainState taken = parse_state(bytes, "fuzz");
        if (taken.batches) return;
        const TrainState again = parse_state(format_state(taken), "again");
        ASSERT_EQ(format_state(again), format_state(taken)) << fuzz::literal(bytes);
      });
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 5000);
}

}  // namespace
}  // namespace trestle::checkpoint
