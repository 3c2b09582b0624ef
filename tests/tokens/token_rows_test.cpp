#include "trestle/tokens/files/token_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "trestle/base/error.h"

namespace trestle::tokens {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class TokenFiles : public testing::Test {
 protected:
  TokenFiles() { fs::create_directories(folder); }
  ~TokenFiles() override { fs::remove_all(folder); }

  // Documents of these sizes with the ids 0, 1, 2, ..., in one file or more.
  std::shared_ptr<TokenSet> text_of(const std::vector<std::vector<std::int64_t>>& files,
                                    std::int64_t vocabulary = 1000) {
    std::int32_t id = 0;
    int number = 0;
    for (const auto& sizes : files) {
      std::vector<std::int32_t> ids;
      std::vector<std::int64_t> begins;
      for (const std::int64_t size : sizes) {
        begins.push_back(std::ssize(ids));
        for (std::int64_t i = 0; i < size; ++i) ids.push_back(id++);
      }
      write_token_file(folder / ("train_" + std::to_string(number++) + ".bin"), ids, begins,
                       {.tokenizer = "abc", .vocabulary = vocabulary});
    }
    return std::make_shared<TokenSet>(folder);
  }

  std::string write_bytes(const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return (folder / name).string();
  }

  fs::path folder = fs::temp_directory_path() / ("token_files_" + std::to_string(getpid()));
};

struct ReadRow {
  std::vector<std::int64_t> ids, targets, places;
};
ReadRow row_of(const TokenRows& rows, std::int64_t number, std::uint64_t key = 0) {
  const auto context = static_cast<std::size_t>(rows.options().context);
  ReadRow row{std::vector<std::int64_t>(context), std::vector<std::int64_t>(context),
              std::vector<std::int64_t>(context)};
  rows.read(number, key, {.ids = row.ids, .targets = row.targets, .places = row.places});
  return row;
}

TEST_F(TokenFiles, HoldIdsAndDocumentsInTheLayoutOfLlmC) {
  const auto set = text_of({{3, 5}, {4}});
  EXPECT_EQ(set->count(), 12);
  EXPECT_EQ(set->documents(), 3);
  EXPECT_EQ(set->document_begin(2), 8);
  EXPECT_EQ(set->document_size(1), 5);
  EXPECT_EQ(set->tokenizer(), "abc");
  std::vector<std::int64_t> ids(6);
  set->read(5, ids, 1000);
  EXPECT_THAT(ids, ElementsAre(5, 6, 7, 8, 9, 10));
  set->check_content();
  std::ifstream in(folder / "train_0.bin", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(bytes.size(), 1024U + 8 * 2);
  EXPECT_EQ(bytes.substr(0, 12),
            std::string("\x88\xd8\x34\x01\x01\x00\x00\x00\x08\x00\x00\x00", 12));
  EXPECT_EQ(bytes.substr(1024, 4), std::string("\x00\x00\x01\x00", 4));
}

TEST_F(TokenFiles, HaveWideIdsForLargeVocabularies) {
  write_token_file(folder / "train.bin", std::vector<std::int32_t>{1, 128255},
                   std::vector<std::int64_t>{0}, {.vocabulary = 128256});
  std::vector<std::int64_t> ids(2);
  TokenFile(folder / "train.bin").read(0, ids, 128256);
  EXPECT_THAT(ids, ElementsAre(1, 128255));
  EXPECT_EQ(fs::file_size(folder / "train.bin"), 1024U + 8);
}

TEST_F(TokenFiles, WithoutAHeaderAreNanoGpts) {
  write_bytes("val.bin", std::string("\x05\x00\x51\xc4", 4));
  const TokenSet set(folder, "validation");
  std::vector<std::int64_t> ids(2);
  set.read(0, ids, 50304);
  EXPECT_THAT(ids, ElementsAre(5, 50257));
}

TEST_F(TokenFiles, ThatAreDamagedAreNamed) {
  text_of({{3, 5}});
  const auto refused = [&](const std::function<void()>& call, const char* words) {
    try {
      call();
      ADD_FAILURE() << "no error: " << words;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  };
  const fs::path file = folder / "train_0.bin";
  std::vector<std::int64_t> ids(8);
  refused([&] { TokenFile(file).read(0, ids, 5); }, "token 5 has the id 5");
  std::string bytes((std::istreambuf_iterator<char>(std::ifstream(file, std::ios::binary).rdbuf())),
                    {});
  bytes[1030] = 9;
  write_bytes("train_0.bin", bytes);
  refused([&] { TokenFile(file).check_content(); }, "checksum");
  write_bytes("train_0.bin", bytes.substr(0, bytes.size() - 2));
  refused([&] { const TokenFile cut(file); }, "its header names 8 tokens");
  bytes[4] = 2;
  write_bytes("train_0.bin", bytes);
  refused([&] { const TokenFile other(file); }, "version 2");
  write_bytes("train_0.bin", "");
  refused([&] { const TokenFile empty(file); }, "empty");
  write_bytes("train_0.bin", std::string(12, '\1') + std::string(1100, '\0'));
  refused([&] { const TokenFile other(file); }, "no header of a token file");
  write_bytes("odd.bin", "abc");
  refused([&] { const TokenFile odd(folder / "odd.bin"); }, "no header");
  refused([&] { const TokenSet none(folder / "nowhere"); }, "no such folder");
  refused([&] { const TokenSet none(folder, "validation"); }, "validation*.bin");
  const auto set = text_of({{3, 5}});
  refused([&] { check_tokenizer(*set, "def", "here"); }, "abc");
  check_tokenizer(*set, "abc", "here");
  write_bytes("train_0.documents", std::string(8, '\1'));
  refused([&] { const TokenFile file_with_list(file); }, "document 0 begins");
}

TEST_F(TokenFiles, GiveWindowsWithTheNextToken) {
  const TokenRows rows(text_of({{3, 5}, {6}}), {.context = 4, .vocabulary = 1000});
  ASSERT_EQ(rows.count(), 3);
  EXPECT_FALSE(rows.has_places());
  EXPECT_THAT(row_of(rows, 1).ids, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(row_of(rows, 1).targets, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(row_of(rows, 1).places, ElementsAre(0, 1, 2, 3)) << "where they are asked for";
  fs::remove(folder / "train_1.bin");
  const TokenRows two(text_of({{101}}), {.context = 4, .vocabulary = 1000, .count = 3});
  EXPECT_EQ(row_of(two, 0).ids[0], 0);
  EXPECT_EQ(row_of(two, 1).ids[0], 32);
  EXPECT_EQ(row_of(two, 2).ids[0], 64);
}

TEST_F(TokenFiles, GiveRandomPlacesByTheirKeyAlone) {
  const TokenRows rows(text_of({{8}}),
                       {.order = RowOrder::Random, .context = 4, .vocabulary = 1000, .count = 5});
  EXPECT_EQ(rows.count(), 5);
  std::set<std::int64_t> firsts;
  for (std::uint64_t key = 0; key < 200; ++key) {
    const ReadRow row = row_of(rows, 0, key);
    firsts.insert(row.ids[0]);
    EXPECT_EQ(row.targets[3], row.ids[0] + 4);
    EXPECT_EQ(row.ids, row_of(rows, 3, key).ids);
  }
  EXPECT_THAT(firsts, ElementsAre(0, 1, 2, 3));
}

// The packed rows hold every token once; within a document of a row places count from 0, the target
// is the next token, and the last token of a document has none.
TEST_F(TokenFiles, PackWholeDocuments) {
  const auto set = text_of({{3, 5, 1}, {9, 2}});
  const TokenRows rows(set,
                       {.order = RowOrder::Documents, .context = 6, .vocabulary = 1000, .seed = 5});
  ASSERT_EQ(rows.count(), 4);
  std::map<std::int64_t, std::int64_t> expected;  // id: target
  for (std::int64_t document = 0; document < set->documents(); ++document)
    for (std::int64_t i = 0; i < set->document_size(document); ++i) {
      const std::int64_t id = set->document_begin(document) + i;
      expected[id] = i + 1 < set->document_size(document) ? id + 1 : -100;
    }
  std::map<std::int64_t, std::int64_t> found;
  std::int64_t padding = 0;
  for (std::int64_t number = 0; number < rows.count(); ++number) {
    const ReadRow row = row_of(rows, number);
    for (std::size_t i = 0; i < 6; ++i) {
      if (row.places[i] < 0) {
        ++padding;
        EXPECT_EQ(row.targets[i], -100);
      } else {
        EXPECT_TRUE(found.emplace(row.ids[i], row.targets[i]).second);
        const bool continues = i > 0 && row.ids[i] == row.ids[i - 1] + 1 && row.targets[i - 1] >= 0;
        EXPECT_EQ(row.places[i], continues ? row.places[i - 1] + 1 : 0);
      }
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(padding, 4);
  const TokenRows other(
      set, {.order = RowOrder::Documents, .context = 6, .vocabulary = 1000, .seed = 6});
  EXPECT_NE(row_of(rows, 0).ids, row_of(other, 0).ids);
}

TEST_F(TokenFiles, GiveOneDocumentARow) {
  const TokenRows rows(text_of({{3, 5, 1}}),
                       {.order = RowOrder::Rows, .context = 4, .vocabulary = 1000});
  ASSERT_EQ(rows.count(), 3);
  EXPECT_THAT(row_of(rows, 0).ids, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(row_of(rows, 0).targets, ElementsAre(1, 2, -100, -100));
  EXPECT_THAT(row_of(rows, 0).places, ElementsAre(0, 1, 2, -1));
  EXPECT_THAT(row_of(rows, 1).ids, ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(row_of(rows, 1).targets, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(row_of(rows, 2).targets, ElementsAre(-100, -100, -100, -100));
}

TEST_F(TokenFiles, RefuseOtherSizesAndRowsThatDoNotExist) {
  const auto set = text_of({{9, 8}});
  for (const RowOrder order : {RowOrder::Windows, RowOrder::Documents, RowOrder::Rows}) {
    const TokenRows rows(set, {.order = order, .context = 8, .vocabulary = 1000});
    const auto refusal = [&](std::int64_t number, std::size_t ids, std::size_t targets,
                             std::size_t places) -> std::string {
      std::vector<std::int64_t> a(ids), b(targets), c(places);
      try {
        rows.read(number, 0, {.ids = a, .targets = b, .places = c});
      } catch (const UsageError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal(0, 8, 8, 8), "");
    EXPECT_THAT(refusal(0, 4, 8, 8), HasSubstr("a row of 8 tokens needs spans of that size"));
    EXPECT_THAT(refusal(0, 16, 16, 16), HasSubstr("got 16, 16 and 16"));
    EXPECT_THAT(refusal(0, 8, 4, 8), HasSubstr("got 8, 4 and 8"));
    if (rows.has_places()) {
      EXPECT_THAT(refusal(0, 8, 8, 0), HasSubstr("and places"));
    }
    for (const std::int64_t number : {std::int64_t{-1}, rows.count(), std::int64_t{1000000}})
      EXPECT_THAT(refusal(number, 8, 8, 8), HasSubstr("is outside of the text's rows 0 to"));
  }
}

TEST_F(TokenFiles, TooShortForARowAreRefused) {
  const auto set = text_of({{4}});
  EXPECT_THROW(TokenRows(set, {.context = 4, .vocabulary = 1000}), UsageError);
  EXPECT_THROW(TokenRows(set, {.context = 0, .vocabulary = 1000}), UsageError);
  EXPECT_THROW(TokenRows(set, {.order = RowOrder::Random, .context = 2, .vocabulary = 1000}),
               UsageError);
  EXPECT_THROW(parse_row_order("window"), UsageError);
}

}  // namespace
}  // namespace trestle::tokens
