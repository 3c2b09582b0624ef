#include "trestle/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <mutex>

#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/rank_threads.h"
#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override {
    base_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" /
            text("folder_", testing::UnitTest::GetInstance()->current_test_info()->name(), "_",
                 getpid());
    fs::remove_all(base_);
    fs::create_directories(base_);
    folder_ = base_ / "last";
  }
  void TearDown() override { fs::remove_all(base_); }

  // The error of opening the folder and reading all weights.
  std::string refusal() const {
    try {
      CheckpointFolder(folder_).read("weights");
    } catch (const FormatError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  fs::path base_, folder_;
};

const std::vector<at::ScalarType> types = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                           at::kLong,  at::kInt,    at::kShort,    at::kChar,
                                           at::kByte,  at::kBool};

at::Tensor counting(const Sizes& shape, at::ScalarType type) {
  return torch::arange(elements_of(shape)).remainder(97).to(type).view(shape);
}

// Rows 5 and 6 of the table are padding, on disk and in its optimizer's state.
TEST_F(Checkpoints, LeaveOutPaddedRowsAndReadThemAsZeros) {
  const at::Tensor table = torch::arange(21, at::kFloat).view({7, 3});
  const at::Tensor other = torch::ones({7, 3});
  const TensorGroups all = {
      {"weights",
       {{"table", table.narrow(0, 0, 4), {0, 0}, {7, 3}},
        {"table", table.narrow(0, 4, 2), {4, 0}, {7, 3}},
        {"table", table.narrow(0, 6, 1), {6, 0}, {7, 3}},
        {"other", other}}},
      {"optimizer", {{"table.square_avg", table + 1}, {"table.step", torch::tensor(3)}}}};
  const PaddedRows five = {{"table", {.saved = 5, .in_model = 7}}};
  write_checkpoint(folder_, without_padding(all, five), "{}");
  EXPECT_EQ(CheckpointFolder(folder_).tensors("weights")[0].shape, (Sizes{5, 3}));
  EXPECT_TRUE(
      at::equal(CheckpointFolder(folder_).read("weights").at(0).second, table.narrow(0, 0, 5)));
  for (const std::int64_t rows : {5, 6, 9}) {
    const CheckpointFolder saved(folder_, {{"table", {.saved = 5, .in_model = rows}}});
    at::Tensor expected = torch::zeros({rows, 3});
    expected.narrow(0, 0, 5).copy_(table.narrow(0, 0, 5));
    EXPECT_EQ(saved.tensors("weights")[0].shape, (Sizes{rows, 3}));
    EXPECT_TRUE(at::equal(saved.read("weights").at(0).second, expected));
    at::Tensor last = torch::full({2, 3}, 7.0);  // partly or wholly padding
    saved.read("weights", {{"table", last, {rows - 2, 0}}});
    EXPECT_TRUE(at::equal(last, expected.narrow(0, rows - 2, 2)));
    const NamedTensors state = saved.read("optimizer");
    EXPECT_TRUE(at::equal(state.at(0).second.narrow(0, 0, 5), table.narrow(0, 0, 5) + 1));
    EXPECT_EQ(state.at(0).second.narrow(0, 5, rows - 5).abs().sum().item<float>(), 0);
    EXPECT_EQ(state.at(1).second.item<std::int64_t>(), 3);
    EXPECT_TRUE(at::equal(saved.read("weights").at(1).second, other));
  }
}

at::Tensor part_of(const at::Tensor& whole, const Box& box) {
  at::Tensor part = whole;
  for (std::size_t d = 0; d < box.sizes.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.offset[d], box.sizes[d]);
  return part;
}

void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type()) << what;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(torch::equal(a, b)) << what;
}

// A tensor of the box's shape with strides in another order.
at::Tensor odd_strides(const Sizes& sizes, at::ScalarType type, Random& random) {
  Sizes reversed(sizes.rbegin(), sizes.rend());
  if (!reversed.empty() && random.below(2) == 0) reversed.back() += 2;
  at::Tensor tensor = torch::zeros(reversed, type);
  tensor = tensor.permute([&] {
    std::vector<std::int64_t> order;
    for (std::size_t d = sizes.size(); d > 0; --d)
      order.push_back(static_cast<std::int64_t>(d) - 1);
    return order;
  }());
  return sizes.empty() ? tensor : tensor.narrow(0, tensor.size(0) - sizes[0], sizes[0]);
}

TEST_F(Checkpoints, AnyRankReadsAnyBox) {
  Random random(7);
  constexpr int ranks = 3;
  for (int round = 0; round < 12; ++round) {
    std::vector<at::Tensor> whole;
    std::vector<TensorGroups> of_rank(ranks);
    for (int i = 0; i < 12; ++i) {
      const Sizes shape = random_shape(random, 4, 7);
      whole.push_back(counting(shape, types[random.below(types.size())]));
      auto boxes = random_cut(random, shape, 1 + static_cast<int>(random.below(ranks)));
      for (std::size_t b = 0; b < boxes.size(); ++b)
        of_rank[(b + static_cast<std::size_t>(i)) % ranks]["weights"].push_back(
            {text("t", i), part_of(whole.back(), boxes[b]), boxes[b].offset, shape});
    }
    ASSERT_THAT(on_ranks(ranks,
                         [&](const SaveRanks& rank) {
                           write_checkpoint(folder_, of_rank[static_cast<std::size_t>(rank.rank)],
                                            "{}", rank);
                         }),
                Each(""));
    const CheckpointFolder saved(folder_);
    for (const auto& [name, tensor] : saved.read("weights"))
      expect_same(tensor, whole[static_cast<std::size_t>(std::stoi(name.substr(1)))], name);
    for (int i = 0; i < 60; ++i) {
      const std::size_t which = random.below(whole.size());
      const Box box = random_box(random, whole[which].sizes().vec());
      const at::ScalarType type = whole[which].scalar_type();
      const at::Tensor into = random.below(2) == 0 ? torch::zeros(box.sizes, type)
                                                   : odd_strides(box.sizes, type, random);
      saved.read("weights", {{text("t", which), into, box.offset}});
      expect_same(into, part_of(whole[which], box), to_string(box));
    }
  }
}

TEST_F(Checkpoints, EveryKindOfTensorRoundTrips) {
  TensorGroups groups;
  for (const at::ScalarType type : types)
    groups["weights"].push_back({c10::toString(type), counting({3, 4}, type)});
  const at::Tensor base = torch::arange(24, torch::kFloat).view({4, 6});
  const at::Tensor tied = torch::ones({2, 2}, torch::requires_grad());
  groups["weights"].insert(
      groups["weights"].end(),
      {{"scalar", torch::tensor(3.5)},
       {"none", torch::zeros({0, 3})},
       {"transposed", base.t()},
       {"view", base.slice(1, 1, 5, 2)},
       {"channels_last", torch::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)},
       {"first name", tied},
       {"second name", tied}});
  groups["optimizer"] = {{"scalar", torch::tensor(7)}};  // the same name in another group
  write_checkpoint(folder_, groups, R"({"step": 3})");
  const CheckpointFolder saved(folder_);
  EXPECT_EQ(saved.state(), R"({"step":3})");
  std::size_t i = 0;
  for (const auto& [name, tensor] : saved.read("weights")) {
    EXPECT_EQ(name, groups["weights"][i].name) << "in the order in which they were written";
    expect_same(tensor, groups["weights"][i++].tensor.detach(), name);
  }
  EXPECT_EQ(saved.read("optimizer")[0].second.item<std::int64_t>(), 7);
  EXPECT_TRUE(saved.tensors("gradients").empty());
  EXPECT_TRUE(saved.read("gradients").empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3);
}

TEST_F(Checkpoints, ReadsIntoExistingTensors) {
  write_checkpoint(folder_, {{"weights", {{"w", torch::ones({4, 3})}, {"b", torch::zeros(3)}}}},
                   "{}");
  at::Tensor w = torch::zeros({3, 4}).t().requires_grad_();
  const void* storage = w.const_data_ptr();
  const auto version = w._version();
  CheckpointFolder(folder_).read("weights", {{"w", w}});
  EXPECT_EQ(w.const_data_ptr(), storage);
  EXPECT_TRUE(torch::equal(w.detach(), torch::ones({4, 3})));
  EXPECT_GT(w._version(), version) << "autograd must notice";
  try {
    CheckpointFolder(folder_).read("weights", {{"w", torch::zeros({3, 4})},
                                               {"b", torch::zeros(3, torch::kDouble)},
                                               {"c", torch::zeros(1)},
                                               {"b", torch::zeros(2), {2}}});
    FAIL() << "nothing was thrown";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("4 differences"),
                      HasSubstr("'w' is Float [4, 3], but the model's is "
                                "Float [3, 4]"),
                      HasSubstr("'b' is Float [3], but the model's is Double [3]"),
                      HasSubstr("'c' is missing"), HasSubstr("begins at [2] and has size [2]")));
  }
}

TEST_F(Checkpoints, RejectsInvalidTensorsOfRanks) {
  const auto save = [&](const std::function<std::vector<TensorShard>(int)>& parts) {
    return on_ranks(2, [&](const SaveRanks& ranks) {
      write_checkpoint(folder_, {{"weights", parts(ranks.rank)}}, "{}", ranks);
    });
  };
  const at::Tensor rows = torch::ones({2, 3});
  EXPECT_THAT(save([&](int) {
                return std::vector<TensorShard>{{"w", rows}};
              }),
              Each(HasSubstr("rank 0 and rank 1 both saved [0:2, 0:3] of 'w'")));
  EXPECT_THAT(save([&](int rank) {
                return std::vector<TensorShard>{{"w", rows, {rank * 3, 0}, {5, 3}}};
              }),
              Each(HasSubstr("no rank saved [2:3, 0:3] of 'w'")));
  EXPECT_THAT(save([&](int rank) {
                return std::vector<TensorShard>{
                    {"w", rank == 0 ? rows : rows.to(at::kHalf), {rank * 2, 0}, {4, 3}}};
              }),
              Each(HasSubstr("'w' is F32 [4, 3] on rank 0 and F16 [4, 3] on rank 1")));
  EXPECT_THAT(save([&](int rank) {
                return std::vector<TensorShard>{{"w", rows, {rank * 2, 1}, {4, 3}}};
              }),
              Each(HasSubstr("is not within its shape, [4, 3]")));
  EXPECT_THAT(save([&](int rank) {
                return std::vector<TensorShard>{
                    {text("w", rank), rank == 0 ? rows : torch::ones(2, at::kComplexFloat)}};
              }),
              Each(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("ComplexFloat"))));
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_THROW(write_checkpoint(folder_, {{"../up", {{"w", rows}}}}, "{}"), UsageError);
  // A rank without rows.
  EXPECT_THAT(save([&](int rank) {
                return std::vector<TensorShard>{
                    {"w", rank == 0 ? rows : rows.narrow(0, 0, 0), {rank * 2, 0}, {2, 3}}};
              }),
              Each(""));
}

TEST_F(Checkpoints, AFileOfAnotherSaveIsReported) {
  const auto save = [&](double value) {
    ASSERT_THAT(on_ranks(2,
                         [&](const SaveRanks& ranks) {
                           write_checkpoint(
                               folder_,
                               {{"weights", {{text("w", ranks.rank), torch::full({50}, value)}}}},
                               "{}", ranks);
                         }),
                Each(""));
  };
  save(1);
  const fs::path part = folder_ / "weights.rank1.safetensors";
  fs::copy(part, base_ / "older");
  const std::string older = read_file(part);
  save(2);
  EXPECT_EQ(refusal(), "nothing was thrown");
  const std::string newer = read_file(part);
  const auto put = [&](const std::string& bytes) {
    std::ofstream(part, std::ios::binary | std::ios::trunc) << bytes;
    return refusal();
  };
  EXPECT_THAT(put(older), AllOf(HasSubstr("weights.rank1.safetensors"),
                                HasSubstr("'w1' differs from the saved one")));
  // A reader of other tensors gets no error.
  CheckpointFolder(folder_).read("weights", std::vector<std::string>{"w0"});
  EXPECT_THAT(put(newer.substr(0, newer.size() - 1)),
              AllOf(HasSubstr("weights.rank1.safetensors"), HasSubstr("but had")));
  std::string damaged = newer;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  EXPECT_THAT(put(damaged), HasSubstr("'w1' differs from the saved one"));
  std::string renamed = newer;
  renamed.replace(renamed.find("w1"), 2, "w7");
  EXPECT_THAT(put(renamed), HasSubstr("has no 'w1', but the index lists it"));
  std::string retyped = newer;
  retyped.replace(retyped.find("F32"), 3, "I32");
  EXPECT_THAT(put(retyped), HasSubstr("has 'w1' as Int [50], but the index has F32 [50]"));
  fs::remove(part);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("weights.rank1.safetensors"), HasSubstr("is missing")));
  EXPECT_EQ(put(newer), "nothing was thrown");
  // Bytes are compared for strided destinations, too.
  put(damaged);
  EXPECT_THROW(
      CheckpointFolder(folder_).read("weights", {{"w1", torch::zeros({50, 2}).select(1, 0)}}),
      FormatError);
}

// Whatever the index contains, only bytes of its files are read.
TEST_F(Checkpoints, FuzzADamagedIndexGivesAnErrorOrCompleteTensors) {
  ASSERT_THAT(on_ranks(2,
                       [&](const SaveRanks& ranks) {
                         write_checkpoint(
                             folder_,
                             {{"weights",
                               {{"w", torch::ones({2, 3}), {ranks.rank * 2, 0}, {4, 3}},
                                {text("b", ranks.rank), torch::ones({})}}}},
                             R"({"step": 3})", ranks);
                       }),
              Each(""));
  const std::string index = read_file(folder_ / "index.json");
  const auto result = fuzz::run(
      {index},
      [&](std::string_view bytes) {
        std::ofstream(folder_ / "index.json", std::ios::binary | std::ios::trunc) << bytes;
        const CheckpointFolder saved(folder_);
        for (const auto& [name, tensor] : saved.read("weights"))
          ASSERT_TRUE(torch::equal(tensor, torch::ones_like(tensor))) << name;
      },
      {.iterations = 8000});
  EXPECT_GT(result.accepted, 20);
  EXPECT_GT(result.refused, 500);
}

TEST_F(Checkpoints, CanBeReadAsAWeightsFile) {
  ASSERT_THAT(
      on_ranks(3,
               [&](const SaveRanks& ranks) {
                 write_checkpoint(
                     folder_,
                     {{"weights",
                       {{text("w", ranks.rank), torch::full({2}, 1.0 + ranks.rank)},
                        {"rows", torch::full({1, 2}, ranks.rank), {ranks.rank, 0}, {3, 2}}}},
                      {"optimizer", {{text("w", ranks.rank, ".step"), torch::tensor(1)}}}},
                     "{}", ranks);
               }),
      Each(""));
  EXPECT_EQ(list_weights(folder_).size(), 4u);
  const NamedTensors all = read_weights(folder_).tensors;
  write_weights(base_ / "one.safetensors", all);
  const TensorFile one = read_tensors(base_ / "one.safetensors");
  const std::map<std::string, at::Tensor> single(one.tensors.begin(), one.tensors.end());
  ASSERT_EQ(single.size(), 4u);
  EXPECT_TRUE(torch::equal(
      single.at("rows"),
      torch::tensor({0., 0., 1., 1., 2., 2.}).view({3, 2}).to(single.at("rows").scalar_type())));
  EXPECT_TRUE(torch::equal(single.at("w2"), torch::full({2}, 3.0)));
  at::Tensor converted = torch::zeros(2, at::kDouble);
  load_weights({{"w1", converted}}, folder_, {.strict = false});
  EXPECT_TRUE(torch::equal(converted, torch::full({2}, 2.0, at::kDouble)));
}

// A save over ranks was killed between the shards and the file, and the next save has one rank.
TEST_F(Checkpoints, TheNextSaveRemovesLeftoversOfAKilledOne) {
  const fs::path file = base_ / "best.safetensors";
  fs::create_directories(base_ / "best.safetensors.parts.tmp");
  fs::create_directories(base_ / "best.safetensors.parts");
  write_tensors_over_ranks(file, {{"w", torch::ones({2})}}, {}, {});
  EXPECT_EQ(std::distance(fs::directory_iterator(base_), {}), 1);
}

}  // namespace
}  // namespace trestle::checkpoint
