#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

// Runs the built program as a user does. In place of `trestle` itself a forked child of the test
// program calls trestle::run(), as the program's main() does.
namespace trestle {

struct Finished {
  int code = -1;  // exit code, or 128 + the signal that ended it
  std::string out, err;
};

struct RunWith {
  long largest_file = 0;  // bytes; 0 = no limit. Simulates a full disk.
  std::string program = TRESTLE_PROGRAM;
  std::string out = {};  // standard output's file; empty = into Finished
};

// A started program in the working directory `folder`.
class Started {
 public:
  Started(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
          RunWith with = {});
  ~Started();
  // Waits until the output contains `words`; false if the program ends before.
  bool wait_for(const std::string& words);
  void send(int signal);
  Finished wait();

 private:
  std::filesystem::path out_, err_;
  pid_t child_ = -1;
};

// A recipe of random numbers whose run takes a moment.
inline constexpr const char* two_linears_recipe = R"([model]
name = "two_linears"
classes = 5
[data]
name = "random"
shape = [10]
count = 50
targets = "normal"
[devices]
use = "virtual:2"
threads = 1
[train]
epochs = 2
batch = 20
loss = "mean_squared_error"
predict = false
)";

// A folder with data and the recipe small.toml of a U-Net whose run takes a second.
class ProgramTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override;
  // Removes what the test left, so that the next test of the suite finds what the first one found.
  void TearDown() override;
  static Finished run(const std::vector<std::string>& arguments, RunWith with = {});
  // Writes NAME.toml: small.toml with a word replaced.
  static void write_recipe(const std::string& name, const std::string& word,
                           const std::string& instead);
  // The values of a key in a run's metrics.jsonl, in the order of the lines that have it.
  static std::vector<double> numbers(const std::string& run, const char* key);
  // Writes sea.txt, a small text of 60 lines.
  static void write_sea();
  // Bash's completions after `trestle` and these words, from the program's own script.
  static std::string completed(const std::vector<std::string>& words);

  static std::filesystem::path folder_;

 private:
  std::set<std::filesystem::path> before_;  // the files in folder_ and in its runs
};

}  // namespace trestle
