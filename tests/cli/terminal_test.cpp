// The program on a terminal: bars in place, and no line wider than the window.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// The program prints no wide characters.
int columns_of(const std::string& line) {
  int columns = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b')
      i = line.find('m', i);
    else if ((static_cast<unsigned char>(line[i]) & 0xc0U) != 0x80)
      ++columns;
  }
  return columns;
}

class OnTerminal : public ProgramTest {
 protected:
  // Everything that the program writes to a terminal of `columns` columns.
  static std::string shown(std::vector<std::string> words, unsigned short columns) {
    words.insert(words.begin(), TRESTLE_PROGRAM);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
    if (child == 0) {
      setenv("TERM", "xterm", 1);
      if (chdir(folder_.c_str()) != 0) _exit(126);
      execv(argv[0], argv.data());
      _exit(127);
    }
    std::string all;
    char piece[4096];
    for (ssize_t got = 0; (got = read(terminal, piece, sizeof piece)) > 0;)
      all.append(piece, static_cast<std::size_t>(got));
    close(terminal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << all;
    return all;
  }

  // The bars that were overwritten, and the lines that stayed.
  struct Screen {
    std::vector<std::string> bars, lines;
  };
  static Screen screen(const std::string& all) {
    Screen result;
    std::string line;
    const std::string erase = "\r\x1b[2K";
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all.compare(i, erase.size(), erase) == 0) {
        if (!line.empty()) result.bars.push_back(line);
        line.clear();
        i += erase.size() - 1;
      } else if (all[i] == '\n') {
        result.lines.push_back(line);
        line.clear();
      } else if (all[i] != '\r') {
        line += all[i];
      }
    }
    EXPECT_EQ(line, "") << "the last line is erased";
    return result;
  }
};

TEST_F(OnTerminal, EveryBarFitsWindow) {
  for (const int columns : {20, 40, 60, 80, 120}) {
    const Screen seen = screen(shown({"train", "small.toml", "--name", text("wide_", columns)},
                                     static_cast<unsigned short>(columns)));
    int training = 0, validation = 0;
    for (const std::string& bar : seen.bars) {
      EXPECT_LT(columns_of(bar), columns) << bar;
      training += bar.find("/3") != std::string::npos;
      validation += bar.find("validation ") != std::string::npos;
    }
    EXPECT_GT(training, 0);
    EXPECT_GT(validation, 0);
    // Paths are never folded, and some other parts are wider than 40 columns.
    for (const std::string& line : seen.lines) {
      const bool path = line.find("runs/") != std::string::npos;
      const bool held = line.find("━") != std::string::npos || (columns >= 60 && !path);
      if (held) {
        EXPECT_LE(columns_of(line), columns) << line;
      }
    }
  }
}

TEST_F(OnTerminal, SynthesisShowsBar) {
  const Screen made = screen(shown({"data", "synthesize", "carvana", "--count", "5", "--out",
                                    "five", "--width", "48", "--height", "32"},
                                   50));
  ASSERT_FALSE(made.bars.empty());
  EXPECT_THAT(made.bars[0], HasSubstr("drawn "));
  EXPECT_THAT(made.bars[0], HasSubstr(" 1/5"));
  ASSERT_EQ(made.lines.size(), 1u);
  EXPECT_THAT(made.lines[0], ::testing::StartsWith("wrote 5 images to five/train_hq"));
  const Screen first = screen(shown({"train", "small.toml", "--epochs", "1", "--synthesize", "16",
                                     "--images", "new/train_hq", "--masks", "new/train_masks"},
                                    50));
  ASSERT_FALSE(first.bars.empty());
  EXPECT_THAT(first.bars[0], HasSubstr("synthesizing data"));
}

TEST_F(OnTerminal, PipedOutputHasWholeLines) {
  const Finished piped = run({"train", "small.toml", "--name", "piped", "--log-every", "1"});
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(piped.out, Not(HasSubstr("\r")));
  EXPECT_THAT(piped.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(piped.out,
              HasSubstr("\nrun       piped · 2 epochs, 6 steps · writes into runs/piped\n"));
  EXPECT_THAT(piped.out, HasSubstr("\nepoch 1/2  1/3  loss "));
  EXPECT_THAT(piped.out, HasSubstr("\nepoch 2/2  validation 1/1  loss "));
  const std::string log = read_file(folder_ / "runs/piped/log.txt");
  EXPECT_EQ(log.substr(log.find('\n') + 1), piped.out);
  const Finished quiet =
      run({"train", "small.toml", "--name", "still", "--log-every", "0", "--quiet"});
  EXPECT_EQ(quiet.out, "");
  EXPECT_THAT(read_file(folder_ / "runs/still/log.txt"), Not(HasSubstr("epoch 1/2  ")));
  const Finished wrong = run({"train", "small.toml", "--epochs", "0"});
  EXPECT_THAT(wrong.err, ::testing::StartsWith("trestle: ")) << "no carriage return in a file";
}

}  // namespace
}  // namespace trestle
