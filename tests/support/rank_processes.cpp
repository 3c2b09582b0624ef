// run_rank_processes() starts the rank processes, watches them, and runs inside them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "tests/support/run_ranks.h"
#include "trestle/base/text.h"

extern char** environ;

namespace trestle::testing {
namespace {

constexpr const char* mark = "TRESTLE_RANK_OF_TEST";

std::string running_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return text(info->test_suite_name(), ".", info->name());
}

[[noreturn]] void be_a_rank(const std::function<void()>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives the test
  int code = 0;
  try {
    body();
    code = ::testing::Test::HasFailure() ? 1 : 0;
  } catch (const std::exception& error) {
    std::cout << "exception: " << error.what() << std::endl;
    code = 3;
  }
  std::cout << std::flush;
  std::exit(code);
}

struct Running {
  pid_t process = -1;
  std::string output_file;
  bool has_ended = false, is_stopped = false;
};

std::vector<std::string> environment_of(int rank, int ranks, int port,
                                        const ProcessOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string line = *entry;
    variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables["OMP_NUM_THREADS"] = "1";
  variables[mark] = running_test();
  for (const auto& [name, value] : options.variables) variables[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& lines) {
  std::vector<char*> result;
  for (std::string& line : lines) result.push_back(line.data());
  result.push_back(nullptr);
  return result;
}

Running start(int rank, int ranks, int port, const ProcessOptions& options) {
  Running running;
  running.output_file = text(::testing::TempDir(), "rank_", getpid(), "_", rank, ".txt");
  auto variables = environment_of(rank, ranks, port, options);
  std::vector<std::string> words = {"/proc/self/exe", "--gtest_filter=" + running_test()};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, running.output_file.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int code = posix_spawn(&running.process, "/proc/self/exe", &actions, nullptr,
                               pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) throw std::runtime_error(text("rank ", rank, " cannot start: error ", code));
  return running;
}

// Records a process's new state.
void look(Running& running, RankProcess& known) {
  int status = 0;
  if (running.has_ended || waitpid(running.process, &status, WNOHANG | WUNTRACED | WCONTINUED) <= 0)
    return;
  running.is_stopped = WIFSTOPPED(status);
  known.was_stopped = known.was_stopped || running.is_stopped;
  if (running.is_stopped || WIFCONTINUED(status)) return;
  running.has_ended = true;
  if (WIFEXITED(status)) known.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) known.signal = WTERMSIG(status);
}

}  // namespace

std::vector<RankProcess> run_rank_processes(int ranks, const std::function<void()>& body,
                                            const ProcessOptions& options) {
  if (const char* test = std::getenv(mark); test && test == running_test()) be_a_rank(body);
  const int port = free_port();
  std::vector<Running> running;
  for (int rank = 0; rank < ranks; ++rank) running.push_back(start(rank, ranks, port, options));
  std::vector<RankProcess> known(running.size());
  const auto end = std::chrono::steady_clock::now() + options.limit;
  for (bool all_ended = false; !all_ended;) {
    const bool is_late = std::chrono::steady_clock::now() > end;
    bool others_ended = true;
    all_ended = true;
    for (std::size_t rank = 0; rank < running.size(); ++rank) {
      look(running[rank], known[rank]);
      all_ended = all_ended && running[rank].has_ended;
      others_ended = others_ended && (running[rank].has_ended || running[rank].is_stopped);
      if (is_late && !running[rank].has_ended) {
        ADD_FAILURE() << "rank " << rank << " still ran after " << options.limit.count() << " ms";
        known[rank].was_stopped = running[rank].is_stopped = true;
      }
    }
    if (others_ended && !all_ended) {
      for (std::size_t rank = 0; rank < running.size(); ++rank)
        if (!running[rank].has_ended) kill(running[rank].process, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::size_t rank = 0; rank < running.size(); ++rank) {
    std::ifstream file(running[rank].output_file);
    std::stringstream content;
    content << file.rdbuf();
    known[rank].output = content.str();
    unlink(running[rank].output_file.c_str());
  }
  return known;
}

}  // namespace trestle::testing
