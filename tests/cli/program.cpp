#include "tests/cli/program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/run.h"

namespace trestle {

namespace {

namespace fs = std::filesystem;

const char* const small = R"([model]
name = "unet"
width = 4

[data]
name = "carvana"
images = "cars/train_hq"
masks = "cars/train_masks"
validation = 0.25
workers = 1

[devices]
use = "virtual:2"

[pipeline]
balance = [13, 9]
micro_batches = 2

[optimizer]
name = "rmsprop"
learning_rate = 1e-4

[train]
epochs = 2
batch = 4
)";

std::string content(const fs::path& path) { return fs::exists(path) ? read_file(path) : ""; }

// The files in a folder and in its `runs`.
std::set<fs::path> files_of(const fs::path& folder) {
  std::set<fs::path> found;
  for (const fs::path& in : {folder, folder / "runs"}) {
    if (!fs::is_directory(in)) continue;
    for (const auto& entry : fs::directory_iterator(in)) found.insert(entry.path());
  }
  return found;
}

}  // namespace

Started::Started(const fs::path& folder, const std::vector<std::string>& arguments, RunWith with) {
  static int number = 0;
  out_ = folder / text("out", ++number);
  err_ = folder / text("err", number);
  std::vector<std::string> words = {with.program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);  // the child must not print what this process has buffered
  child_ = fork();
  if (child_ != 0) return;
  const int out =
      open(with.out.empty() ? out_.c_str() : with.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (chdir(folder.c_str()) != 0) _exit(126);
  if (with.largest_file > 0) {
    const rlimit limit{static_cast<rlim_t>(with.largest_file),
                       static_cast<rlim_t>(with.largest_file)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  // This test program has loaded libtorch already, which takes longer than most commands. It runs
  // no tensor operation itself, so the child is as a process that has just been started.
  if (with.program == TRESTLE_PROGRAM) {
    const auto main = [&]() noexcept {
      std::exit(trestle::run(static_cast<int>(words.size()), argv.data()));
    };
    main();
  }
  execv(argv[0], argv.data());
  _exit(127);
}

Started::~Started() {
  if (child_ > 0) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
}

bool Started::wait_for(const std::string& words) {
  while (content(out_).find(words) == std::string::npos) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == child_)
      return content(out_).find(words) != std::string::npos;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Started::send(int signal) { kill(child_, signal); }

Finished Started::wait() {
  int status = 0;
  waitpid(child_, &status, 0);
  child_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content(out_),
          content(err_)};
}

fs::path ProgramTest::folder_;

void ProgramTest::SetUpTestSuite() {
  const std::string suite = ::testing::UnitTest::GetInstance()->current_test_suite()->name();
  // Each test of a suite may run in its own process, several at once.
  folder_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("apps_", suite, "_", getpid());
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  write_file(folder_ / "small.toml", small);
  const Finished made = run({"data", "synthesize", "carvana", "--count", "16", "--out", "cars",
                             "--width", "48", "--height", "32"});
  ASSERT_EQ(made.code, 0) << made.err;
}

void ProgramTest::TearDownTestSuite() { fs::remove_all(folder_); }

void ProgramTest::SetUp() { before_ = files_of(folder_); }

void ProgramTest::TearDown() {
  for (const fs::path& path : files_of(folder_))
    if (!before_.contains(path)) fs::remove_all(path);
}

Finished ProgramTest::run(const std::vector<std::string>& arguments, RunWith with) {
  return Started(folder_, arguments, with).wait();
}

void ProgramTest::write_recipe(const std::string& name, const std::string& word,
                               const std::string& instead) {
  std::string recipe = small;
  const auto at = recipe.find(word);
  ASSERT_NE(at, std::string::npos) << word;
  recipe.replace(at, word.size(), instead);
  write_file(folder_ / (name + ".toml"), recipe);
}

std::vector<double> ProgramTest::numbers(const std::string& run, const char* key) {
  std::vector<double> found;
  for (const std::string& line : split(read_file(folder_ / "runs" / run / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    const auto parsed = nlohmann::json::parse(line);
    if (parsed.contains(key)) found.push_back(parsed[key].get<double>());
  }
  return found;
}

void ProgramTest::write_sea() {
  std::string words;
  for (int i = 0; i < 60; ++i) words += text("The ", i, " ships sail, and the sea is wide.\n");
  write_file(folder_ / "sea.txt", words);
}

std::string ProgramTest::completed(const std::vector<std::string>& words) {
  write_file(
      folder_ / "complete.bash",
      run({"completion", "bash"}).out +
          "COMP_WORDS=(trestle \"$@\"); COMP_CWORD=$#; _trestle; echo \"${COMPREPLY[@]}\"\n");
  std::vector<std::string> all = {"complete.bash"};
  all.insert(all.end(), words.begin(), words.end());
  return run(all, {.program = "/bin/bash"}).out;
}

}  // namespace trestle
