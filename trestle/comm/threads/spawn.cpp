#include "trestle/comm/threads/spawn.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <cxxabi.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <typeinfo>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/thread_board.h"
#include "trestle/comm/threads/thread_world.h"
#include "trestle/device/error_context.h"
#include "trestle/device/keyed_generator.h"
#include "trestle/device/threads.h"
#include "trestle/device/vector_math.h"

namespace trestle::comm {
namespace {

// Call it in a catch block: rethrows the exception with its rank.
[[noreturn]] void raise_from_rank(int rank) {
  const std::string where = text("on rank ", rank);
  const auto threw = [&](const std::type_info& type) {
    return text("rank ", rank, " threw ", c10::demangle(type.name()));
  };
  try {
    rethrow_with_context(where);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).ends_with(where)) throw;
    throw ForeignError(text(threw(typeid(error)), ": ", error.what()));
  } catch (...) {
    throw ForeignError(threw(*abi::__cxa_current_exception_type()));
  }
}

// The first failure of all ranks.
class FirstFailure {
 public:
  // Call it in a catch block.
  void record(ThreadBoard& board, int rank) {
    const std::string reason =
        text("rank ", rank, " failed: ", error_message(std::current_exception()));
    {
      const std::lock_guard lock(mutex_);
      if (!error_ || (is_echo_ && !is<RankError>())) {
        error_ = std::current_exception();
        rank_ = rank;
        is_echo_ = is<RankError>();
      }
    }
    board.fail(reason);
  }

  void raise() {
    if (!error_) return;
    if (is_echo_) std::rethrow_exception(error_);  // its message names the rank already
    try {
      std::rethrow_exception(error_);
    } catch (...) {
      raise_from_rank(rank_);
    }
  }

 private:
  template <class Type>
  static bool is() {
    try {
      throw;
    } catch (const Type&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  std::mutex mutex_;
  std::exception_ptr error_;
  int rank_ = 0;
  // error_ is a RankError: a rank that was woken by the failure may get here before the rank that
  // failed.
  bool is_echo_ = false;
};

}  // namespace

void check_thread_ranks(int ranks) {
  if (ranks >= 1 && ranks <= most_thread_ranks) return;
  throw UsageError(text("cannot start ", ranks, " ranks as threads"),
                   {.hint = text("Use 1 to ", most_thread_ranks, " ranks.")});
}

void run_thread_ranks(int ranks, const SpawnOptions& options,
                      const std::function<void(World&)>& function) {
  check_thread_ranks(ranks);
  if (options.threads < 0 || options.threads > most_threads())
    throw UsageError(text("cannot run an operator on ", options.threads, " threads"));
  const int threads = options.threads > 0 ? options.threads : threads_of_each(ranks);
  const auto board = std::make_shared<ThreadBoard>(ranks);
  FirstFailure failure;
  warm_up_vector_math();
  prepare_keyed_random();  // for seeded(), before the threads run
  std::vector<std::thread> running;
  for (int rank = 0; rank < ranks; ++rank) {
    running.emplace_back([&, rank] {
      std::optional<World> world;  // destroyed after the failure is recorded
      try {
        set_own_threads(threads);
        world.emplace(thread_world(board, {.rank = rank,
                                           .size = ranks,
                                           .local_rank = rank,
                                           .local_size = ranks,
                                           .backend = "threads",
                                           .started_by = "spawn",
                                           .deadline = options.deadline}));
        function(*world);
        board->leave(rank);
      } catch (...) {
        failure.record(*board, rank);
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  board->fail("the ranks of this world have ended");  // releases messages that no rank received
  failure.raise();
}

}  // namespace trestle::comm
