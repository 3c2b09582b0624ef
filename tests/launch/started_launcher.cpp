#include "tests/launch/started_launcher.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::launch {

namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

std::string content(const fs::path& path) { return fs::exists(path) ? read_file(path) : ""; }

}  // namespace

StartedLauncher::StartedLauncher(const Words& arguments, With with) {
  static int number = 0;
  folder_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("launch_", getpid(), "_", ++number);
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  Words words = with.program;
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = with.out.empty() ? (folder_ / "out").string() : with.out;
  const std::string err = with.err.empty() ? (folder_ / "err").string() : with.err;
  begin_ = now();
  child_ = fork();
  if (child_ != 0) return;
  const auto become = [](int stream, const std::string& path, int flags) {
    close(stream);
    if (path == "closed") return;
    const int opened = open(path.c_str(), flags, 0600);
    if (opened != stream) {
      dup2(opened, stream);
      close(opened);
    }
  };
  become(STDIN_FILENO, with.in, O_RDONLY);
  become(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
  become(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
  // The tests' parent may ignore these signals, as a shell does for background jobs.
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP}) std::signal(signal, SIG_DFL);
  execv(argv[0], argv.data());
  _exit(127);
}

StartedLauncher::~StartedLauncher() {
  if (child_ > 0) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  fs::remove_all(folder_);
}

void StartedLauncher::send(int signal) const { kill(child_, signal); }

std::string StartedLauncher::out() const { return content(folder_ / "out"); }

void StartedLauncher::wait_for(const std::string& words, int times) const {
  for (const double end = now() + 20; now() < end; pause())
    if (count_of(words, out()) >= times) return;
  ADD_FAILURE() << "no " << times << " times '" << words << "' in:\n"
                << out() << content(folder_ / "err");
}

Outcome StartedLauncher::wait() {
  int status = 0;
  bool ended = false;
  for (const double end = now() + 60; !ended && now() < end; pause())
    ended = waitpid(child_, &status, WNOHANG) == child_;
  Outcome outcome{.out = out(), .err = content(folder_ / "err"), .seconds = now() - begin_};
  if (!ended) {
    ADD_FAILURE() << "the launcher does not end:\n" << outcome.out << outcome.err;
    return outcome;
  }
  child_ = -1;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

Outcome run_launcher(const Words& arguments, StartedLauncher::With with) {
  return StartedLauncher(arguments, std::move(with)).wait();
}

Outcome run_launcher(const Words& arguments) { return run_launcher(arguments, {}); }

Words on_ranks(int ranks, const std::string& script, const Words& flags) {
  Words words = {"-n", std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return words;
}

int count_of(const std::string& words, const std::string& text) {
  int count = 0;
  for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

Words lines_of(const std::string& text) {
  Words lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

bool is_alive(pid_t process) {
  std::ifstream file(text("/proc/", process, "/stat"));
  std::string stat;
  std::getline(file, stat);
  const auto behind_name = stat.rfind(')');
  return behind_name != std::string::npos && stat.at(behind_name + 2) != 'Z';
}

bool all_gone(const std::vector<pid_t>& processes) {
  for (const double end = now() + 10; now() < end; pause()) {
    bool gone = true;
    for (const pid_t process : processes) gone = gone && !is_alive(process);
    if (gone) return true;
  }
  return false;
}

std::vector<pid_t> processes_in(const std::string& text) {
  std::vector<pid_t> processes;
  const std::string mark = "pid ";
  for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1))
    processes.push_back(std::stoi(text.substr(at + mark.size())));
  return processes;
}

}  // namespace trestle::launch
