#include "trestle/tokens/files/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/tokens/files/token_rows.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/tokens/tokenizers/character_tokenizer.h"

namespace trestle::tokens {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Bytes between a first token and a last one. It refuses a text with the word "refuse".
class FramedBytes : public Tokenizer {
 public:
  explicit FramedBytes(std::vector<Id> prefix = {}, std::vector<Id> suffix = {})
      : prefix_(std::move(prefix)), suffix_(std::move(suffix)) {}
  std::vector<Id> encode(std::string_view text, Specials) const override {
    if (text.find("refuse") != text.npos) throw FormatError("this text is refused");
    return bytes_->encode(text);
  }
  std::string_view bytes(Id id) const override { return id < 256 ? bytes_->bytes(id) : ""; }
  Id size() const override { return 260; }
  bool is_special(Id id) const override { return id >= 256; }
  std::vector<Id> prefix() const override { return prefix_; }
  std::vector<Id> suffix() const override { return suffix_; }
  Id find(std::string_view) const override { return -1; }
  std::string hash() const override { return "00000000000000fb"; }

 private:
  std::unique_ptr<Tokenizer> bytes_ = bytes_tokenizer();
  std::vector<Id> prefix_, suffix_;
};

// The process's standard input is a pipe with this text while the object lives; without a text it
// stays open and empty.
class StandardInput {
 public:
  StandardInput() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    before_ = dup(STDIN_FILENO);
    dup2(ends_[0], STDIN_FILENO);
  }
  explicit StandardInput(const std::string& text) : StandardInput() {
    EXPECT_EQ(write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(std::exchange(ends_[1], -1));
  }
  ~StandardInput() {
    dup2(before_, STDIN_FILENO);
    for (const int end : {before_, ends_[0], ends_[1]}) close(end);
  }

 private:
  std::array<int, 2> ends_{};
  int before_ = -1;
};

// The content of a file, read without the library.
struct PlainFile {
  std::vector<std::vector<Id>> documents;
  std::string counts;  // "0110..." or nothing
};

template <class Number>
std::vector<Number> numbers_of(const std::string& bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

PlainFile plain(fs::path bin) {
  const auto ids = numbers_of<std::uint16_t>(read_file(bin).substr(1024));
  auto begins = numbers_of<std::uint64_t>(read_file(bin.replace_extension(".documents")));
  begins.push_back(ids.size());
  PlainFile file;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    file.documents.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(begins[i]),
                                ids.begin() + static_cast<std::ptrdiff_t>(begins[i + 1]));
  if (!fs::exists(bin.replace_extension(".counts"))) return file;
  const std::string bits = read_file(bin);
  for (std::size_t i = 0; i < ids.size(); ++i)
    file.counts += (static_cast<unsigned char>(bits[i / 8]) & (1 << i % 8)) != 0 ? '1' : '0';
  return file;
}

std::vector<Id> ids_of(const std::string& text, const std::vector<Id>& more = {}) {
  std::vector<Id> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class Prepare : public testing::Test {
 protected:
  Prepare() { fs::create_directories(folder / "in"); }
  ~Prepare() override { fs::remove_all(folder); }

  std::string write(const std::string& name, const std::string& content) {
    fs::create_directories((folder / "in" / name).parent_path());
    std::ofstream(folder / "in" / name, std::ios::binary) << content;
    return (folder / "in" / name).string();
  }

  // All documents of a split, over its files.
  std::vector<std::vector<Id>> documents(const std::string& split = "train") {
    std::vector<std::vector<Id>> all;
    for (int number = 0;; ++number) {
      const fs::path bin = out / (split + "_00000" + std::to_string(number) + ".bin");
      if (!fs::exists(bin)) return all;
      for (auto& one : plain(bin).documents) all.push_back(one);
    }
  }

  std::map<std::string, std::string> contents(const fs::path& of) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(of))
      if (entry.is_regular_file())
        all[fs::relative(entry.path(), of).string()] = read_file(entry.path());
    return all;
  }

  // The words of the error; nothing may be left of the attempt.
  std::string refusal(const std::vector<std::string>& sources, PrepareOptions options) {
    if (options.out.empty()) options.out = out;
    const auto before = contents(folder);
    std::string words = "no error";
    try {
      prepare(sources, tokenizer, options);
    } catch (const Error& error) {
      words = error.what();
    }
    EXPECT_EQ(contents(folder), before) << words;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()),
              fs::exists(out) ? 2 : 1)
        << words;
    return words;
  }

  fs::path folder = fs::temp_directory_path() / ("prepare_" + std::to_string(getpid()));
  fs::path out = folder / "out";
  FramedBytes tokenizer;
};

TEST_F(Prepare, ReadsFilesFoldersAndLinesOfJsonInOrder) {
  write("folder/b.txt", "two");
  write("folder/a/z.md", "one");
  write("folder/c.html", "no text");
  write("folder/d.jsonl", "{\"text\": \"three\"}\n\n{\"text\": \"fo\\nur\", \"id\": 4}\r\n");
  const std::string single = write("single.any", "five");
  const Prepared done = prepare({(folder / "in/folder").string(), single}, tokenizer,
                                {.out = out, .end_token = 256, .validation = 0});
  EXPECT_THAT(documents(),
              ElementsAre(ids_of("one", {256}), ids_of("two", {256}), ids_of("three", {256}),
                          ids_of("fo\nur", {256}), ids_of("five", {256})));
  EXPECT_THAT(documents("validation"), IsEmpty());
  EXPECT_EQ(done.documents, 5);
  EXPECT_EQ(done.bytes, 20);
  EXPECT_EQ(done.training_tokens, 25);
  EXPECT_EQ(done.files, 1);
  const std::string json = read_file(out / "train_000000.json");
  EXPECT_THAT(json, AllOf(HasSubstr("00000000000000fb"), HasSubstr("single.any")));
}

TEST_F(Prepare, ReadsStandardInput) {
  {
    const StandardInput input("from a pipe");
    prepare({"-"}, tokenizer, {.out = out, .validation = 0});
  }
  EXPECT_THAT(documents(), ElementsAre(ids_of("from a pipe")));
}

TEST_F(Prepare, ReadsAFifo) {
  const fs::path fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(fifo) << "through a fifo"; });
  prepare({fifo.string()}, tokenizer, {.out = out, .validation = 0});
  writer.join();
  EXPECT_THAT(documents(), ElementsAre(ids_of("through a fifo")));
}

// A signal ends the wait for input where the caller stops.
TEST_F(Prepare, StopsWhileItWaitsForInput) {
  static volatile std::sig_atomic_t alarms = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { alarms = alarms + 1; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const StandardInput input;  // nothing comes
  const itimerval soon{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 50'000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  const PrepareOptions options{.out = out,
                               .progress = [](std::int64_t, std::int64_t) { return alarms == 0; }};
  EXPECT_THROW(prepare({"-"}, tokenizer, options), StateError);
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Prepare, DividesTextAtSeparators) {
  const std::string file = write("cookies", "one\ntwo\n%\n%\nthree %\n %\r\n%\r\nfour");
  const Prepared done = prepare({file}, tokenizer, {.out = out, .validation = 0, .separator = "%"});
  EXPECT_THAT(documents(),
              ElementsAre(ids_of("one\ntwo\n"), ids_of("three %\n %\r\n"), ids_of("four")));
  EXPECT_EQ(done.empty_documents, 1);
}

// A text may contain the end token; documents end where the sources end them.
TEST_F(Prepare, AddsTheTokenizersTokensToEachDocument) {
  const FramedBytes framed({257, 258}, {259});
  const std::string a = write("a", "x\ny"), b = write("b", "z");
  prepare({a, b}, framed, {.out = out, .end_token = '\n', .validation = 0});
  EXPECT_THAT(documents(), ElementsAre(std::vector<Id>{257, 258, 'x', '\n', 'y', 259, '\n'},
                                       std::vector<Id>{257, 258, 'z', 259, '\n'}));
}

TEST_F(Prepare, KeepsTheEndOfASingleDocumentForValidation) {
  std::string text;
  for (int i = 0; i < 103; ++i) text += static_cast<char>('A' + i % 50);
  const std::string file = write("a", text);
  prepare({file}, tokenizer, {.out = out, .validation = 0.1});
  EXPECT_THAT(documents(), ElementsAre(ids_of(text.substr(0, 92))));  // int(0.9 * 103)
  EXPECT_THAT(documents("validation"), ElementsAre(ids_of(text.substr(92))));
}

TEST_F(Prepare, DrawsWholeDocumentsForValidation) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"text\": \"" + std::to_string(i) + "\"}\n";
  const std::string file = write("a.jsonl", lines);
  const auto split_of = [&](std::uint64_t seed) {
    fs::remove_all(out);
    prepare({file}, tokenizer, {.out = out, .validation = 0.2, .seed = seed});
    return std::pair(documents(), documents("validation"));
  };
  const auto [training, validation] = split_of(1);
  EXPECT_NEAR(static_cast<double>(validation.size()), 400, 80);
  std::size_t t = 0, v = 0;  // each document is in one of the splits, in its order
  for (int i = 0; i < 2000; ++i) {
    const auto ids = ids_of(std::to_string(i));
    if (t < training.size() && training[t] == ids)
      ++t;
    else
      EXPECT_EQ(validation.at(v++), ids);
  }
  EXPECT_EQ(t + v, 2000U);
  EXPECT_EQ(split_of(1).second, validation);
  EXPECT_NE(split_of(2).second, validation);
  // Both splits have a document where two exist.
  const std::string a = write("a", "a"), b = write("b", "b");
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    fs::remove_all(out);
    const Prepared two = prepare({a, b}, tokenizer, {.out = out, .validation = 0.5, .seed = seed});
    EXPECT_EQ(two.training_tokens, 1);
    EXPECT_EQ(two.validation_tokens, 1);
  }
}

TEST_F(Prepare, DoesNotDependOnThreads) {
  std::string lines;
  for (int i = 0; i < 22; ++i)  // more than one group of 16 MiB
    lines += "{\"text\": \"" +
             std::string(static_cast<std::size_t>(900'000 - i * 10'000),
                         static_cast<char>('a' + i % 26)) +
             "\"}\n";
  const std::string file = write("a.jsonl", lines);
  const auto with = [&](int threads) {
    fs::remove_all(out);
    prepare({file}, tokenizer, {.out = out, .shard_tokens = 4'000'000, .threads = threads});
    return contents(out);
  };
  const auto one = with(1);
  EXPECT_GT(one.size(), 12U);
  EXPECT_TRUE(with(7) == one);
}

TEST_F(Prepare, FillsFilesWithWholeDocuments) {
  const std::string file = write("a", "aaaa\n%\nbbb\n%\ncccccccccccc\n%\nd\n%\ne\n");
  const Prepared done = prepare({file}, tokenizer,
                                {.out = out, .validation = 0, .separator = "%", .shard_tokens = 9});
  EXPECT_EQ(done.files, 3);
  EXPECT_THAT(plain(out / "train_000000.bin").documents,
              ElementsAre(ids_of("aaaa\n"), ids_of("bbb\n")));
  EXPECT_THAT(plain(out / "train_000001.bin").documents, ElementsAre(ids_of("cccccccccccc\n")));
  EXPECT_THAT(plain(out / "train_000002.bin").documents, ElementsAre(ids_of("d\n"), ids_of("e\n")));
  TokenSet(out).check_content();
}

TEST_F(Prepare, LeavesEmptyDocumentsOut) {
  const std::string empty = write("empty", ""), one = write("one", "x");
  const Prepared done = prepare({empty, one, empty}, tokenizer, {.out = out, .validation = 0.5});
  EXPECT_EQ(done.empty_documents, 2);
  EXPECT_THAT(documents(), ElementsAre(ids_of("x")));  // a single token is not divided
  EXPECT_THAT(documents("validation"), IsEmpty());
  EXPECT_THAT(refusal({empty}, {.out = folder / "other"}), HasSubstr("no text"));
  EXPECT_THAT(refusal({}, {.out = folder / "other"}), HasSubstr("no text"));
}

TEST_F(Prepare, ReplacesInvalidUtf8) {
  const std::string file = write("a", "a\xff\xc3z");
  const Prepared done = prepare({file}, tokenizer, {.out = out, .validation = 0});
  EXPECT_THAT(documents(), ElementsAre(ids_of("a\xef\xbf\xbd\xef\xbf\xbdz")));
  EXPECT_EQ(done.repaired_documents, 1);
}

TEST_F(Prepare, LeavesByteOrderMarksOutAndRefusesUtf16) {
  prepare({write("a", "\xef\xbb\xbfhi")}, tokenizer, {.out = out, .validation = 0});
  EXPECT_THAT(documents(), ElementsAre(ids_of("hi")));
  for (const char* mark : {"\xff\xfe", "\xfe\xff"})
    EXPECT_THAT(refusal({write("b", std::string(mark) + "h")}, {.out = folder / "other"}),
                AllOf(HasSubstr("is UTF-16"), HasSubstr("iconv")));
  EXPECT_THAT(
      refusal({write("c", std::string("\xff\xfe\0\0h\0\0\0", 8))}, {.out = folder / "other"}),
      HasSubstr("iconv -f UTF-32"));
}

// A pair is what the template writes for it, and the targets are what it adds to the prompt.
TEST_F(Prepare, WritesPairsAsConversations) {
  const std::string file = write("pairs.jsonl", "{\"prompt\": \"hi\", \"answer\": \"ho\"}\n");
  const FramedBytes framed({257}, {});
  prepare({file}, framed,
          {.out = out,
           .end_token = 256,
           .validation = 0,
           .prompt_key = "prompt",
           .chat = ChatTemplate::from_text(
               "begin: ^\nmessage: {role}={content};\nanswer: assistant=\n")});
  const PlainFile pairs = plain(out / "train_000000.bin");
  EXPECT_THAT(pairs.documents, ElementsAre(ids_of("^user=hi;assistant=ho;")));
  EXPECT_EQ(pairs.counts, std::string(19, '0') + "111");
  const auto chat = ChatTemplate::from_text("message: {content}\nanswer: >\n");
  EXPECT_THAT(refusal({file}, {.out = folder / "b", .prompt_key = "prompt", .chat = chat}),
              HasSubstr("begins an answer in another way"));
  EXPECT_THAT(refusal({file}, {.out = folder / "b", .chat = chat}), HasSubstr("--prompt-key"));
}

TEST_F(Prepare, CountsOnlyAnswersOfPairs) {
  const FramedBytes framed({257}, {});
  const std::string file = write("pairs.jsonl",
                                 "{\"prompt\": \"2+2=\", \"answer\": \"4\"}\n"
                                 "{\"prompt\": \"skip\", \"answer\": \"\"}\n"
                                 "{\"prompt\": \"\", \"answer\": \"hello\"}\n");
  const PrepareOptions options = {
      .out = out, .end_token = 256, .validation = 0, .prompt_key = "prompt"};
  const Prepared done = prepare({file}, framed, options);
  EXPECT_EQ(done.documents, 2);
  EXPECT_EQ(done.empty_documents, 1);
  const PlainFile pairs = plain(out / "train_000000.bin");
  EXPECT_THAT(pairs.documents, ElementsAre(std::vector<Id>{257, '2', '+', '2', '=', '4', 256},
                                           std::vector<Id>{257, 'h', 'e', 'l', 'l', 'o', 256}));
  EXPECT_EQ(pairs.counts,
            "0000011"
            "0111111");

  const auto set = std::make_shared<TokenSet>(out);
  const auto targets = [&](RowOrder order, std::int64_t number) {
    const TokenRows rows(set, {.order = order, .context = 6, .vocabulary = 260});
    std::vector<std::int64_t> ids(6), found(6), places(6);
    rows.read(number, 0, {.ids = ids, .targets = found, .places = places});
    return found;
  };
  EXPECT_THAT(targets(RowOrder::Windows, 0), ElementsAre(-100, -100, -100, -100, '4', 256));
  EXPECT_THAT(targets(RowOrder::Windows, 1), ElementsAre(-100, 'h', 'e', 'l', 'l', 'o'));
  EXPECT_THAT(targets(RowOrder::Rows, 0), ElementsAre(-100, -100, -100, -100, '4', 256));
  EXPECT_THAT(targets(RowOrder::Rows, 1), ElementsAre('h', 'e', 'l', 'l', 'o', 256));
  std::vector<std::int64_t> packed;
  for (std::int64_t row = 0; row < 3; ++row)
    for (const std::int64_t target : targets(RowOrder::Documents, row))
      if (target != -100) packed.push_back(target);
  std::sort(packed.begin(), packed.end());
  EXPECT_THAT(packed, ElementsAre('4', 'e', 'h', 'l', 'l', 'o', 256, 256));

  std::string bits = read_file(out / "train_000000.counts");
  bits[0] = static_cast<char>(bits[0] ^ 2);
  write_file(out / "train_000000.counts", bits);
  EXPECT_THROW(TokenSet(out).check_content(), FormatError);
  fs::remove(out / "train_000000.counts");
  EXPECT_THROW(TokenSet{out}, FormatError);  // it would also train on the prompts
}

TEST_F(Prepare, ReadsPairsFromLinesOfJsonOnly) {
  const std::string text = write("a.txt", "x");
  EXPECT_THAT(refusal({text}, {.prompt_key = "prompt"}), HasSubstr("from .jsonl files only"));
  {
    const StandardInput input("{\"q\": \"a\", \"a\": \"b\"}");
    prepare({"-"}, tokenizer, {.out = out, .prompt_key = "q", .answer_key = "a"});
  }
  EXPECT_EQ(plain(out / "train_000000.bin").counts, "01");
  EXPECT_THAT(documents("validation"), IsEmpty());  // a single pair is not divided
}

TEST_F(Prepare, NamesTheLineOfInvalidJson) {
  const std::string file = write("a.jsonl", "{\"text\": \"a\"}\n{\"body\": \"b\", \"n\": 3}\n");
  EXPECT_THAT(refusal({file}, {}),
              AllOf(HasSubstr("a.jsonl:2"), HasSubstr("'text'"), HasSubstr("body")));
  EXPECT_THAT(refusal({write("b.jsonl", "\n[1]\n")}, {}), HasSubstr("b.jsonl:2: is no JSON"));
  EXPECT_THAT(refusal({write("c.jsonl", "{\"text\": \"a")}, {}), HasSubstr("c.jsonl:1"));
  EXPECT_THAT(refusal({write("d.jsonl", "{\"text\": \"\xff\"}")}, {}), HasSubstr("UTF-8"));
}

TEST_F(Prepare, RefusesInvalidRequests) {
  const std::string file = write("a.txt", "some text");
  fs::create_directories(folder / "in/none");
  EXPECT_THAT(refusal({(folder / "in/none").string()}, {}), HasSubstr("no .txt"));
  EXPECT_THAT(refusal({"/nowhere/at all"}, {}), HasSubstr("no such file"));
  EXPECT_THAT(refusal({file}, {.validation = 1}), HasSubstr("share is 1"));
  EXPECT_THAT(refusal({file}, {.validation = -0.1}), HasSubstr("share is -0.1"));
  EXPECT_THAT(refusal({file}, {.shard_tokens = 0}), HasSubstr("shards of 0"));
  EXPECT_THAT(refusal({file}, {.threads = -1}), HasSubstr("-1 threads"));
  EXPECT_THAT(refusal({file}, {.end_token = 260}), HasSubstr("end token 260"));
  EXPECT_THAT(refusal({file}, {.out = file}), HasSubstr("exists already"));
  EXPECT_THAT(refusal({file}, {.out = folder / "in"}), HasSubstr("exists already"));
}

TEST_F(Prepare, ReplacesOnlyAFolderOfTokenFiles) {
  const std::string file = write("a.txt", "some text");
  prepare({file}, tokenizer, {.out = out});
  EXPECT_THAT(refusal({file}, {}), HasSubstr("--overwrite"));
  write("a.txt", "other words");
  prepare({file}, tokenizer,
          {.out = out, .overwrite = Overwrite::Allow, .save_tokenizer = [](const fs::path& to) {
             std::ofstream(to / "merges.txt") << "not a text";
           }});
  EXPECT_THAT(documents(), ElementsAre(ids_of("other wor")));
  // Its own folder is no source.
  const Prepared again = prepare({folder.string()}, tokenizer,
                                 {.out = out / "", .overwrite = Overwrite::Allow, .validation = 0});
  EXPECT_EQ(again.documents, 1);
  EXPECT_FALSE(fs::exists(out / "validation_000000.bin"));
  std::ofstream(out / "train_notes.txt") << "mine";
  EXPECT_THAT(refusal({file}, {.overwrite = Overwrite::Allow}), HasSubstr("other files"));
}

TEST_F(Prepare, LeavesNothingBehindAfterAFailure) {
  const std::string file = write("a.txt", std::string(30'000, 'x'));
  const std::string bad = write("b.txt", "refuse this");
  EXPECT_THAT(refusal({file, bad}, {.validation = 0, .shard_tokens = 1, .threads = 2}),
              HasSubstr("refused"));
  EXPECT_THAT(refusal({file}, {.progress = [](auto, auto) { return false; }}),
              HasSubstr("stopped"));
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit small = {.rlim_cur = 20'000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // as a full disk
  const std::string words = refusal({file}, {});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(words, AllOf(HasSubstr("train_000000.bin"), HasSubstr("larger")));
}

// A child that is killed in the middle leaves its partial folder; its parent still writes one.
TEST_F(Prepare, RemovesThePartialFoldersOfKilledProcessesAlone) {
  const std::string file = write("a.txt", "some text");
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  const auto prepare_killed = [&](const PrepareOptions& options) {
    const pid_t child = fork();
    if (child == 0) {
      PrepareOptions dying = options;
      dying.out = out;
      dying.progress = [](auto, auto) {
        raise(SIGKILL);
        return true;
      };
      prepare({file}, tokenizer, dying);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
  };
  prepare_killed({});
  EXPECT_GT(entries(), 1) << "nothing was left behind: the test tests nothing";
  // While this process writes, another one is killed, and a third finishes.
  bool first = true;
  prepare({file}, tokenizer, {.out = out, .progress = [&](auto, auto) {
                                if (!std::exchange(first, false)) return true;
                                prepare_killed({});
                                prepare({file}, tokenizer, {.out = folder / "out.2"});
                                return true;
                              }});
  EXPECT_THAT(documents(), ElementsAre(ids_of("some tex")));
  prepare({file}, tokenizer, {.out = out, .overwrite = Overwrite::Allow});
  EXPECT_EQ(entries(), 3) << "in, out and out.2";
}

// A process was killed after it had moved the old content away.
TEST_F(Prepare, RestoresOldContentThatWasMovedAway) {
  const std::string file = write("a.txt", "some text");
  prepare({file}, tokenizer, {.out = out});
  fs::rename(out, folder / "out.4711.partial.old");
  fs::create_directories(folder / "out.4711.partial");
  std::string words;
  try {
    prepare({file}, tokenizer, {.out = out});
  } catch (const UsageError& error) {
    words = error.what();
  }
  EXPECT_THAT(words, HasSubstr("--overwrite"));
  EXPECT_THAT(documents(), ElementsAre(ids_of("some tex")));
  EXPECT_FALSE(fs::exists(folder / "out.4711.partial"));
  // The new content has its place now, so the old one is removed.
  fs::create_directories(folder / "out.4711.partial.old");
  prepare({file}, tokenizer, {.out = out, .overwrite = Overwrite::Allow});
  EXPECT_FALSE(fs::exists(folder / "out.4711.partial.old"));
}

TEST_F(Prepare, ReportsProgress) {
  const std::string a = write("a.txt", "four"), b = write("b.txt", "seven77");
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  prepare({a, b}, tokenizer, {.out = out, .progress = [&](auto done, auto all) {
                                seen.emplace_back(done, all);
                                return true;
                              }});
  EXPECT_EQ(seen.back(), std::pair(std::int64_t{11}, std::int64_t{11}));
}

TEST_F(Prepare, SavesTheTokenizerBesideTheTokens) {
  const std::string file = write("a.txt", "hello world");
  const auto characters = character_tokenizer("hello world");
  prepare({file}, *characters, {.out = out, .save_tokenizer = [&](const fs::path& to) {
                                  characters->save(to / "tokenizer.json");
                                }});
  const auto opened = open_saved_tokenizer(out / "tokenizer");
  EXPECT_EQ(opened->hash(), characters->hash());
  EXPECT_EQ(opened->hash(), TokenSet(out).tokenizer());
  fs::create_directories(folder / "copy");
  copy_tokenizer("bytes", folder / "copy");
  EXPECT_EQ(open_saved_tokenizer(folder / "copy")->hash(), bytes_tokenizer()->hash());
}

}  // namespace
}  // namespace trestle::tokens
