#include "trestle/tokens/files/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <sys/resource.h>
#include <csignal>
#include <fstream>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/tokens/files/token_set.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/tokens/tokenizers/character_tokenizer.h"

namespace trestle::tokens {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Prepare : public testing::Test {
 protected:
  Prepare() { fs::create_directories(folder); }
  ~Prepare() override { fs::remove_all(folder); }

  std::string write(const std::string& name, const std::string& content) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << content;
    return (folder / name).string();
  }

  // The bytes of the documents of a split, by their files.
  std::vector<std::string> documents(const std::string& split) const {
    const TokenSet set(folder / "out", split);
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < set.documents(); ++i) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(set.document_size(i)));
      set.read(set.document_begin(i), ids, 256);
      all.emplace_back(ids.begin(), ids.end());
    }
    return all;
  }

  fs::path folder = fs::path("/dev/shm") / ("prepare_" + std::to_string(getpid()));
  std::unique_ptr<Tokenizer> bytes = bytes_tokenizer();
  PrepareOptions options{.out = folder / "out"};
};

TEST_F(Prepare, DividesOneDocumentAtItsEnd) {
  const Prepared made = prepare({write("a.txt", "0123456789abcdefghij")}, *bytes, options);
  EXPECT_EQ(made.documents, 1);
  EXPECT_EQ(made.training_tokens, 18);
  EXPECT_EQ(documents("train"), std::vector<std::string>{"0123456789abcdefgh"});
  EXPECT_EQ(documents("validation"), std::vector<std::string>{"ij"});
  EXPECT_EQ(TokenSet(folder / "out").tokenizer(), bytes->hash());
  EXPECT_EQ(TokenSet(folder / "out").vocabulary(), 256);
  TokenSet(folder / "out").check_content();
}

TEST_F(Prepare, ReadsFoldersJsonLinesAndSeparators) {
  write("texts/b.txt", "bb");
  write("texts/deep/a.md", "a");
  write("texts/ignored.dat", "no");
  const std::string lines =
      write("c.jsonl", "{\"body\": \"c1\"}\n\n{\"body\": \"c2\", \"x\": 1}\n");
  options.validation = 0;
  options.jsonl_key = "body";
  prepare({(folder / "texts").string(), lines}, *bytes, options);
  EXPECT_EQ(documents("train"), (std::vector<std::string>{"bb", "a", "c1", "c2"}));
  options.overwrite = Overwrite::Allow;
  options.separator = "%";
  options.end_token = 0;
  prepare({write("f.txt", "one\n%\r\n%\ntwo\nlines\n%\nthree")}, *bytes, options);
  using namespace std::string_literals;
  EXPECT_EQ(documents("train"),
            (std::vector<std::string>{"one\n\0"s, "two\nlines\n\0"s, "three\n\0"s}));
}

// The files do not depend on the number of threads, and hold the documents once each.
TEST_F(Prepare, GivesTheSameFilesForAnyNumberOfThreads) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  const std::string file = write("many.jsonl", lines);
  options.shard_tokens = 700;
  std::vector<std::string> first;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    options.overwrite = Overwrite::Allow;
    const Prepared made = prepare({file}, *bytes, options);
    EXPECT_EQ(made.documents, 300);
    EXPECT_GT(made.files, 5);
    std::vector<std::string> all = documents("train"), validation = documents("validation");
    EXPECT_GT(validation.size(), 10U);
    EXPECT_LT(validation.size(), 60U);
    all.insert(all.end(), validation.begin(), validation.end());
    if (first.empty()) first = all;
    EXPECT_EQ(all, first);
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 300U);
  }
}

TEST_F(Prepare, DefinesEmptyAndInvalidText) {
  const std::string lines =
      write("e.jsonl", "{\"text\": \"\"}\n{\"text\": \"x\"}\n{\"text\": \"y\"}\n");
  const Prepared made = prepare({lines}, *bytes, options);
  EXPECT_EQ(made.documents, 2);
  EXPECT_EQ(made.empty_documents, 1);
  EXPECT_EQ(documents("train").size() + documents("validation").size(), 2U);
  options.overwrite = Overwrite::Allow;
  options.validation = 0;
  prepare({write("bad.txt",
                 "a\xff"
                 "b")},
          *bytes, options);
  EXPECT_EQ(documents("train"), std::vector<std::string>{"a\xef\xbf\xbd"
                                                         "b"});
}

TEST_F(Prepare, NamesWhatIsWrong) {
  const auto refused = [&](const std::vector<std::string>& sources, const char* words) {
    try {
      prepare(sources, *bytes, options);
      ADD_FAILURE() << "no error: " << words;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
    EXPECT_FALSE(fs::exists(folder / "out"));
    EXPECT_FALSE(fs::exists(folder / "out.partial"));
  };
  refused({(folder / "none.txt").string()}, "there is no such file");
  refused({write("empty.txt", "")}, "no text");
  refused({write("l.jsonl", "{\"text\": \"a\"}\n{\"body\": \"b\"}\n")}, "l.jsonl:2");
  refused({write("m.jsonl", "[1]\n")}, "no JSON object");
  options.validation = 1;
  refused({write("a.txt", "abc")}, "validation share");
  options.validation = 0.1;
  options.progress = [](std::int64_t, std::int64_t) { return false; };
  refused({write("a.txt", "abc")}, "stopped");
  options.progress = {};
  write("out/mine.txt", "mine");
  options.overwrite = Overwrite::Allow;
  EXPECT_THROW(prepare({write("a.txt", "abc")}, *bytes, options), UsageError);
  EXPECT_TRUE(fs::exists(folder / "out" / "mine.txt"));
}

// A full disk leaves neither a half-written folder nor a changed one.
TEST_F(Prepare, LeavesNothingOnAFullDisk) {
  const std::string file = write("a.txt", std::string(20000, 'a'));
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 8192, before.rlim_max };
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(prepare({file}, *bytes, options), FileError);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.partial"));
}

TEST_F(Prepare, SavesTheTokenizerBesideTheTokens) {
  const std::string file = write("a.txt", "hello world");
  const auto characters = character_tokenizer("hello world");
  options.save_tokenizer = [&](const fs::path& to) { characters->save(to / "tokenizer.json"); };
  prepare({file}, *characters, options);
  const auto opened = open_saved_tokenizer(folder / "out" / "tokenizer");
  EXPECT_EQ(opened->hash(), characters->hash());
  EXPECT_EQ(opened->hash(), TokenSet(folder / "out").tokenizer());
  fs::create_directories(folder / "copy");
  copy_tokenizer("bytes", folder / "copy");
  EXPECT_EQ(open_saved_tokenizer(folder / "copy")->hash(), bytes->hash());
}

}  // namespace
}  // namespace trestle::tokens
