#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

// Runs the built program as a person does.
namespace trestle {

struct Finished {
  int code = -1;  // exit code, or 128 + the signal that ended it
  std::string out, err;
};

struct RunWith {
  long largest_file = 0;  // bytes; 0 = no limit. Stands for a full disk.
  std::string program = TRESTLE_PROGRAM;
  std::string out = {};  // where its standard output goes; empty = into Finished
};

// A started program, its working directory `folder`.
class Started {
 public:
  Started(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
          RunWith with = {});
  ~Started();
  // Waits until its output holds the words; false when it ends before.
  bool wait_for(const std::string& words);
  void send(int signal);
  Finished wait();

 private:
  std::filesystem::path out_, err_;
  pid_t child_ = -1;
};

// A folder with the data and the recipe small.toml of a U-Net so small that a run takes a second.
class ProgramTest : public testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  static Finished run(const std::vector<std::string>& arguments, RunWith with = {});
  // small.toml with a word replaced, as NAME.toml.
  static void write_recipe(const std::string& name, const std::string& word,
                           const std::string& instead);
  // What bash offers behind `trestle` and these words, by the program's own script.
  static std::string completed(const std::vector<std::string>& words);

  static std::filesystem::path folder_;
};

}  // namespace trestle
