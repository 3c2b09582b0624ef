#include "trestle/checkpoint/files/save_over_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "tests/checkpoint/rank_threads.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/content_hash.h"
#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/checkpoint/files/replace_folder.h"
#include "trestle/checkpoint/files/safetensors_header.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::int64_t columns = 3;

// Writes a file with two rows of "w", whose bytes are all the step's number; returns its index.
CheckpointIndex write_rows(const fs::path& fresh, const SaveRanks& ranks, int step,
                           std::int64_t rows) {
  const std::string file = shard_file_name("weights", ranks.rank, ranks.size);
  const std::string data(static_cast<std::size_t>(rows * columns), static_cast<char>(step));
  const std::string header = format_header({{{"w", "U8", {rows, columns}, 0, data.size()}}, {}});
  std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header + data;
  write_file(fresh / file, bytes);
  CheckpointIndex shard;
  shard.files[file] = bytes.size();
  shard.groups["weights"] = {
      {"w",
       "U8",
       {rows * ranks.size, columns},
       {{file, {{rows * ranks.rank, 0}, {rows, columns}}, content_hash(data)}}}};
  return shard;
}

SaveTask at_step(int step, const SaveRanks& ranks, std::int64_t rows = 2) {
  SaveTask task;
  task.state = text("{\"step\": ", step, "}");
  task.agreed = text("step ", step);
  task.write_shard = [=](const fs::path& fresh) { return write_rows(fresh, ranks, step, rows); };
  return task;
}

// The step of the existing checkpoint. Throws unless it is complete and all files are of that step.
std::string whole_step(const fs::path& folder) {
  const fs::path whole = whole_folder(folder);
  const CheckpointIndex index = parse_index(read_file(whole / index_name), "index");
  for (const IndexedTensor& tensor : index.groups.at("weights"))
    for (const StoredBox& stored : tensor.boxes) {
      const std::string bytes = read_file(whole / stored.file);
      const auto count = static_cast<std::size_t>(elements_of(stored.box.sizes));
      EXPECT_EQ(bytes.size(), index.files.at(stored.file));
      EXPECT_EQ(content_hash(std::string_view(bytes).substr(bytes.size() - count)), stored.hash);
    }
  return index.state;
}

class SaveOverRanks : public testing::Test {
 protected:
  void SetUp() override {
    base_ =
        fs::path(TRESTLE_BINARY_DIR) / "scratch" /
        text("save_", testing::UnitTest::GetInstance()->current_test_info()->name(), "_", getpid());
    fs::remove_all(base_);
    fs::create_directories(base_);
    folder_ = base_ / "last";
  }
  void TearDown() override { fs::remove_all(base_); }

  std::vector<std::string> save(int size, int step) const {
    return on_ranks(size, [&](const SaveRanks& ranks) {
      save_over_ranks(folder_, at_step(step, ranks), ranks);
    });
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(base_), fs::directory_iterator());
  }

  fs::path base_, folder_;
};

TEST_F(SaveOverRanks, EachRankWritesItsShardOfOneCheckpoint) {
  for (const int size : {1, 2, 4, 3}) {
    EXPECT_THAT(save(size, size), Each(""));
    EXPECT_EQ(whole_step(folder_), text("{\"step\":", size, "}"));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), size + 1);
    EXPECT_EQ(entries(), 1) << "only last/ remains";
  }
  EXPECT_TRUE(fs::exists(folder_ / "weights.rank2.safetensors"));
}

TEST_F(SaveOverRanks, AnErrorOfOneRankIsThrownOnAll) {
  ASSERT_THAT(save(3, 1), Each(""));
  for (const int guilty : {0, 2}) {
    const auto errors = on_ranks(3, [&](const SaveRanks& ranks) {
      SaveTask task = at_step(2, ranks);
      if (ranks.rank == guilty)
        task.write_shard = [](const fs::path&) -> CheckpointIndex {
          throw FileError("No space left on device", {.file = "shard"});
        };
      try {
        save_over_ranks(folder_, task, ranks);
      } catch (const FileError&) {
        throw;
      } catch (const std::exception& error) {
        throw std::runtime_error(text("of another type: ", error.what()));
      }
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr(text("rank ", guilty, " of 3 could not save")),
                                   HasSubstr("No space left on device"),
                                   testing::Not(HasSubstr("another type")))));
    EXPECT_EQ(whole_step(folder_), "{\"step\":1}");
    EXPECT_EQ(entries(), 1) << "the incomplete new one is removed";
  }
}

TEST_F(SaveOverRanks, AFullDiskOnOneRank) {
  ASSERT_THAT(save(2, 1), Each(""));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto errors = on_ranks(2, [&](const SaveRanks& ranks) {
    save_over_ranks(folder_, at_step(2, ranks, ranks.rank == 1 ? 100'000 : 2), ranks);
  });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("weights.rank1.safetensors"),
                                 HasSubstr("File too large"))));
  EXPECT_EQ(whole_step(folder_), "{\"step\":1}");
  EXPECT_EQ(entries(), 1);
}

TEST_F(SaveOverRanks, DifferencesBetweenRanksAreReported) {
  EXPECT_THAT(on_ranks(2,
                       [&](const SaveRanks& ranks) {
                         save_over_ranks(folder_, at_step(5 + ranks.rank, ranks), ranks);
                       }),
              Each(HasSubstr("rank 0 is at step 5, but rank 1 is at step 6")));
  EXPECT_THAT(on_ranks(2,
                       [&](const SaveRanks& ranks) {
                         save_over_ranks(folder_, at_step(5, ranks, 2 + ranks.rank), ranks);
                       }),
              Each(HasSubstr("'w' is U8 [4, 3] on rank 0 and U8 [6, 3] on rank 1")));
  EXPECT_THAT(on_ranks(2,
                       [&](const SaveRanks& ranks) {
                         save_over_ranks(base_ / text("of_rank_", ranks.rank), at_step(5, ranks),
                                         ranks);
                       }),
              Each(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("does not see the folder"))));
  EXPECT_EQ(entries(), 0);
  EXPECT_THROW(save_over_ranks(folder_, at_step(1, {}), {.rank = 2, .size = 2}), UsageError);
}

TEST_F(SaveOverRanks, ARankThatIsGoneLeavesTheOldCheckpoint) {
  ASSERT_THAT(save(3, 1), Each(""));
  for (const int gone : {0, 1}) {
    const auto errors = on_ranks(3, [&](const SaveRanks& ranks) {
      SaveTask task = at_step(2, ranks);
      if (ranks.rank == gone) throw std::runtime_error("dead");
      save_over_ranks(folder_, task, ranks);
    });
    EXPECT_THAT(errors, testing::Not(testing::Contains("")));
    EXPECT_EQ(whole_step(folder_), "{\"step\":1}");
  }
  EXPECT_THAT(save(3, 3), Each(""));
  EXPECT_EQ(whole_step(folder_), "{\"step\":3}");
  EXPECT_EQ(entries(), 1);
}

// All ranks of a machine that loses power, at each step of each rank.
TEST_F(SaveOverRanks, SurvivesAKillBetweenAnyTwoSteps) {
  const auto killed_at = [&](int size, int rank, const std::string& where, int step) {
    const pid_t child = fork();
    if (child == 0) {
      on_ranks(size, [&](const SaveRanks& ranks) {
        SaveTask task = at_step(step, ranks);
        const auto here = [=](std::string_view name) {
          if (ranks.rank == rank && name == where) kill(getpid(), SIGKILL);
        };
        const auto write = task.write_shard;
        task.write_shard = [=](const fs::path& fresh) {
          here("before its shard");
          const CheckpointIndex shard = write(fresh);
          here("its file written");
          return shard;
        };
        task.after = here;
        save_over_ranks(folder_, task, ranks);
      });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << where;
  };
  int step = 1;
  ASSERT_THAT(save(1, step), Each(""));
  for (const int size : {1, 3})
    for (const int rank : size == 1 ? std::vector<int>{0} : std::vector<int>{0, 2})
      for (const std::string where : {"folder created", "before its shard", "its file written",
                                      "shard written", "index written", "folders exchanged"}) {
        if (where == "index written" && rank != 0) continue;
        SCOPED_TRACE(text(where, " of rank ", rank, " of ", size));
        killed_at(size, rank, where, step + 1);
        const std::string stands = whole_step(folder_);
        EXPECT_EQ(stands,
                  text("{\"step\":", step + (where == "folders exchanged" && rank == 0), "}"));
        step += 2;
        ASSERT_THAT(save(2, step), Each("")) << "leftovers do not disturb the next save";
        EXPECT_EQ(whole_step(folder_), text("{\"step\":", step, "}"));
        EXPECT_EQ(entries(), 1);
      }
}

// Leftovers between the exchange and the removal, and on file systems without name exchange.
TEST_F(SaveOverRanks, LeftoversAreNotReadAsACheckpoint) {
  ASSERT_THAT(save(1, 1), Each(""));
  fs::copy(folder_, base_ / "last.tmp", fs::copy_options::recursive);
  fs::copy(folder_, base_ / "last.old", fs::copy_options::recursive);
  ASSERT_THAT(save(1, 2), Each(""));
  EXPECT_EQ(whole_step(folder_), "{\"step\":2}");
  EXPECT_EQ(entries(), 1);
  fs::rename(folder_, base_ / "last.old");
  fs::create_directories(base_ / "last.tmp");
  EXPECT_EQ(whole_step(folder_), "{\"step\":2}");
  EXPECT_TRUE(is_checkpoint(folder_));
  ASSERT_THAT(save(2, 3), Each(""));
  EXPECT_EQ(whole_step(folder_), "{\"step\":3}");
  EXPECT_EQ(entries(), 1);
  fs::rename(folder_, base_ / "last.tmp");
  EXPECT_FALSE(is_checkpoint(folder_));
  EXPECT_THROW(whole_folder(folder_), FileError);
}

TEST_F(SaveOverRanks, OtherFoldersAreNotReplaced) {
  fs::create_directories(folder_);
  write_file(folder_ / "letter.txt", "dear");
  EXPECT_THAT(save(2, 1), Each(HasSubstr("exists already and is not a checkpoint")));
  EXPECT_EQ(read_file(folder_ / "letter.txt"), "dear");
  fs::remove(folder_ / "letter.txt");
  EXPECT_THAT(save(2, 1), Each("")) << "an empty folder may be replaced";
  folder_ += "/";
  EXPECT_THAT(save(2, 2), Each(""));
  EXPECT_EQ(entries(), 1);
}

}  // namespace
}  // namespace trestle::checkpoint
