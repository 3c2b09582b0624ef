#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/files.h"
#include "trestle/tokens/files/token_rows.h"

// Damaged token files must give a trestle::Error or complete rows.
namespace trestle::tokens {
namespace {

namespace fs = std::filesystem;

class FuzzTokenFile : public testing::TestWithParam<const char*> {
 protected:
  FuzzTokenFile() { fs::create_directories(folder); }
  ~FuzzTokenFile() override { fs::remove_all(folder); }

  // Thousands of small files are slow on a disk.
  fs::path folder =
      (access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path()) /
      ("token_file_fuzz_" + std::to_string(getpid()));
};

void read_all_rows(const std::shared_ptr<const TokenSet>& set) {
  for (const RowOrder order : {RowOrder::Windows, RowOrder::Documents, RowOrder::Rows}) {
    const TokenRows rows(set, {.order = order, .context = 3, .vocabulary = 50});
    std::vector<std::int64_t> ids(3), targets(3), places(3);
    for (std::int64_t number = 0; number < rows.count(); ++number) {
      rows.read(number, 0, {.ids = ids, .targets = targets, .places = places});
      for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(ids[i] >= 0 && ids[i] < 50);
        ASSERT_TRUE(targets[i] == -100 || (targets[i] >= 0 && targets[i] < 50));
      }
    }
  }
  set->check_content();
}

TEST_P(FuzzTokenFile, DamageGivesAnErrorOrCompleteRows) {
  const fs::path bin = folder / "train.bin";
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9};
  write_token_file(
      bin, ids, std::vector<std::int64_t>{0, 4, 5}, {"abc", 50},
      {true, false, true, true, true, false, true, true, true, true, true, true, true});
  fs::path damaged = bin;
  damaged.replace_extension(GetParam());
  const std::string seed = read_file(damaged);
  const auto result =
      fuzz::run({seed, seed.substr(0, 40)},
                [&](std::string_view bytes) {
                  std::ofstream(damaged, std::ios::binary | std::ios::trunc)
                      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
                  read_all_rows(std::make_shared<TokenSet>(folder));
                },
                {.iterations = 2000});
  EXPECT_GT(result.refused, 100);
  EXPECT_GT(result.accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, FuzzTokenFile,
                         testing::Values(".bin", ".json", ".documents", ".counts"),
                         [](const auto& info) { return std::string(info.param + 1); });

// Without a description and counts more damage remains readable.
TEST_F(FuzzTokenFile, DamagedIdsAloneGiveAnErrorOrCompleteRows) {
  const fs::path bin = folder / "train.bin";
  const std::string nano("\x05\x00\x31\x00\x07\x00\x08\x00\x02\x00", 10);
  write_token_file(bin, std::vector<std::int32_t>{1, 2, 3, 4, 5}, {}, {.vocabulary = 70'000});
  const std::string wide = read_file(bin);
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto result =
      fuzz::run({nano, wide},
                [&](std::string_view bytes) {
                  std::ofstream(bin, std::ios::binary | std::ios::trunc)
                      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
                  read_all_rows(std::make_shared<TokenSet>(folder));
                },
                {.iterations = 2000});
  EXPECT_GT(result.refused, 100);
  EXPECT_GT(result.accepted, 100);
}

}  // namespace
}  // namespace trestle::tokens
