#include "trestle/comm/threads/thread_world.h"

#include "trestle/comm/threads/thread_connection.h"
#include "trestle/comm/world_impl.h"

namespace trestle::comm {
namespace {

class ThreadWorld : public World::Impl {
 public:
  ThreadWorld(Facts facts, std::shared_ptr<ThreadBoard> board)
      : Impl(facts, std::make_shared<ThreadControlPlane>(board, facts.rank)),
        board_(std::move(board)) {
    connect_all();
  }
  ~ThreadWorld() override { fail_if_unwinding(); }

  std::shared_ptr<Connection> connect(int number, const std::vector<int>& ranks) override {
    const auto hub = board_->hub(number, ranks);
    auto place = place_in(ranks);
    if (!place) return nullptr;
    return std::make_shared<ThreadConnection>(std::move(*place), hub);
  }

 private:
  const std::shared_ptr<ThreadBoard> board_;
};

}  // namespace

World thread_world(const std::shared_ptr<ThreadBoard>& board, World::Impl::Facts facts) {
  return World(std::make_shared<ThreadWorld>(std::move(facts), board));
}

}  // namespace trestle::comm
