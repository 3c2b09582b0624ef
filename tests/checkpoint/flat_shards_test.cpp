// Ranks that shard tensors by their memory: each has a shard of each tensor, in any memory order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

#include "tests/checkpoint/rank_threads.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/files/box.h"
#include "trestle/checkpoint/flat_shard.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::Each;

at::Tensor counting_range(const Sizes& shape, at::ScalarType type) {
  return torch::arange(elements_of(shape)).remainder(97).to(type).view(shape);
}

void expect_same_tensors(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type()) << what;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(torch::equal(a, b)) << what;
}

class FlatShards : public testing::Test {
 protected:
  static constexpr int ranks = 3;

  void SetUp() override {
    torch::set_num_threads(1);  // for thousands of small files, threads only wait for each other
    base_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" /
            text("pieces_", testing::UnitTest::GetInstance()->current_test_info()->name(), "_",
                 getpid());
    fs::remove_all(base_);
    fs::create_directories(base_);
    folder_ = base_ / "last";
    whole_.emplace_back("conv", counting_range({5, 3, 3, 2}, at::kFloat));
    whole_.emplace_back(
        "last",
        counting_range({5, 3, 3, 2}, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast));
    whole_.emplace_back("matrix", counting_range({7, 11}, at::kDouble).t());
    whole_.emplace_back("bias", counting_range({2}, at::kBFloat16));
    whole_.emplace_back("scalar", counting_range({}, at::kFloat));
  }

  void TearDown() override {
    torch::set_num_threads(threads_);
    fs::remove_all(base_);
  }

  // The error of opening the folder and reading all weights.
  std::string refusal() const {
    try {
      CheckpointFolder(folder_).read("weights");
    } catch (const FormatError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  static FlatShard piece(const std::string& name, const at::Tensor& whole, int rank, int of) {
    const at::Tensor memory = whole.as_strided({whole.numel()}, {1});
    const std::int64_t each = (whole.numel() + of - 1) / of;
    const std::int64_t begin = std::min(each * rank, whole.numel());
    const std::int64_t count = std::min(each, whole.numel() - begin);
    return {name, memory.narrow(0, begin, count), begin, whole.sizes().vec(),
            whole.strides().vec()};
  }

  void save() const {
    const auto errors = on_ranks(ranks, [&](const SaveRanks& rank) {
      TensorGroups groups;
      for (const auto& [name, tensor] : whole_)
        for (TensorShard& box : boxes_of(piece(name, tensor, rank.rank, ranks)))
          groups["weights"].push_back(std::move(box));
      groups["weights"].push_back({text("conv[1]", rank.rank == 1 ? "" : "x", rank.rank),
                                   torch::zeros(2)});  // a name like the keys in the file
      if (rank.rank == 1) groups["weights"].push_back({"conv[1]", torch::ones(2)});
      write_checkpoint(folder_, groups, R"({"step": 3})", rank);
    });
    ASSERT_THAT(errors, Each(""));
  }

  // Reads everything with this number of ranks.
  void expect_pieces(int of) const {
    const CheckpointFolder saved(folder_);
    for (int rank = 0; rank < of; ++rank)
      for (const auto& [name, tensor] : whole_) {
        FlatShard shard = piece(name, tensor, rank, of);
        const at::Tensor expected = shard.elements.clone();
        shard.elements = torch::zeros_like(expected);
        std::vector<CheckpointFolder::Wanted> wanted;
        for (const TensorShard& box : boxes_of(shard))
          wanted.push_back({name, box.tensor, box.offset});
        saved.read("weights", wanted);
        expect_same_tensors(shard.elements, expected, text(name, " of rank ", rank, " of ", of));
      }
  }

  const int threads_ = torch::get_num_threads();
  fs::path base_, folder_;
  NamedTensors whole_;
};

TEST_F(FlatShards, AreReadByAnyNumberOfRanks) {
  save();
  const CheckpointFolder saved(folder_);
  for (const auto& [name, tensor] : whole_)
    expect_same_tensors(saved.read("weights", std::vector{name})[0].second, tensor, name);
  for (const int of : {1, 2, 3, 5, 40}) expect_pieces(of);
  EXPECT_TRUE(torch::equal(saved.read("weights", std::vector<std::string>{"conv[1]"})[0].second,
                           torch::ones(2)));
  write_as_one_file(saved, base_ / "one.safetensors");
  for (const auto& [name, tensor] : read_tensors(base_ / "one.safetensors").tensors)
    for (const auto& [known, expected] : whole_)
      if (known == name) expect_same_tensors(tensor, expected, name);
}

TEST_F(FlatShards, TensorsWithGapsAreRejected) {
  const at::Tensor gaps = torch::ones({4, 6}).slice(1, 0, 6, 2);
  EXPECT_THROW(boxes_of({"w", torch::ones(12), 0, gaps.sizes().vec(), gaps.strides().vec()}),
               UsageError);
}

TEST_F(FlatShards, EveryByteOfTheIndexFlippedGivesAnErrorOrTheSameTensors) {
  save();
  const std::string index = read_file(folder_ / "index.json");
  int refused = 0;
  for (std::size_t i = 0; i < index.size(); ++i) {
    std::string changed = index;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    std::ofstream(folder_ / "index.json", std::ios::binary | std::ios::trunc) << changed;
    try {
      const CheckpointFolder saved(folder_);
      for (const auto& [name, tensor] : whole_) {
        const auto& all = saved.tensors("weights");
        if (std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == name; }))
          expect_same_tensors(saved.read("weights", std::vector{name})[0].second, tensor, name);
      }
    } catch (const Error&) {
      ++refused;
    }
    ASSERT_FALSE(HasFailure()) << "byte " << i << ": " << changed.substr(i > 20 ? i - 20 : 0, 40);
  }
  EXPECT_GT(refused, static_cast<int>(index.size()) / 2);
}

// Also a file of the right size that ends in zeros, as some file systems leave it after a crash.
TEST_F(FlatShards, AFileCutAnywhereGivesAnError) {
  whole_.emplace_back("large", counting_range({61, 257}, at::kDouble));
  save();
  EXPECT_EQ(refusal(), "nothing was thrown");
  for (const auto& entry : std::vector<fs::directory_entry>(fs::directory_iterator(folder_), {})) {
    const std::string bytes = read_file(entry.path());
    for (std::size_t length = 0; length < bytes.size(); length += 4096) {
      std::string cut = bytes.substr(0, length);
      std::ofstream(entry.path(), std::ios::binary | std::ios::trunc) << cut;
      EXPECT_NE(refusal(), "nothing was thrown") << entry.path() << " of " << length << " bytes";
      cut.resize(bytes.size());
      std::ofstream(entry.path(), std::ios::binary | std::ios::trunc) << cut;
      EXPECT_NE(refusal(), "nothing was thrown") << entry.path() << ", zeros from " << length;
    }
    std::ofstream(entry.path(), std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_EQ(refusal(), "nothing was thrown");
  }
}

}  // namespace
}  // namespace trestle::checkpoint
