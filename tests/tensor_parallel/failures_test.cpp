// A rank that fails in the middle of a block: all other ranks end soon, with an error that names
// the rank, and on the ranks that split the block also the layer that waited.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/models/tiny_transformers.h"
#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/parallel/parallelize.h"

namespace trestle::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

enum class Harm { Kill, Stop, Exit, Throw };
enum class When { Forward, Backward };

struct Failure {
  Harm harm = Harm::Kill;
  When when = When::Forward;
  int stages = 1;
  bool sequence = false;
  comm::Check check = comm::Check::On;
};

void do_harm(Harm harm) {
  std::this_thread::sleep_for(300ms);  // the other ranks wait in the block's reduction
  if (harm == Harm::Kill) raise(SIGKILL);
  if (harm == Harm::Stop) raise(SIGSTOP);
  if (harm == Harm::Exit) _exit(0);
  throw std::out_of_range("a bad index");
}

// The last tensor rank of the last stage fails inside of "blocks.1" of its second step.
void train_until_harm(World& world, const Failure& given) {
  const DeviceMesh mesh(world, {{"pipeline", given.stages}, {"tensor", 2}});
  const tensor_parallel::TensorRanks ranks(mesh.group("tensor").with_check(given.check));
  const auto step = std::make_shared<int>(0);
  const bool fails = world.rank() + 1 == world.size();
  ParallelOptions options{.tensor_ranks = ranks};
  if (given.stages == 2) options.options.balance = {2, 3};
  options.options.micro_batches = 2;
  options.options.deadline = 20s;
  options.options.wrap_layers = [&](nn::Graph& graph) {
    for (nn::Layer& layer : graph.layers) {
      if (layer.name != "blocks.1" || !fails) continue;
      layer.forward = [inner = layer.forward, step, given](const nn::Values& arguments) {
        if (*step == 1 && given.when == When::Forward) do_harm(given.harm);
        nn::Values results = inner(arguments);
        if (*step == 1 && given.when == When::Backward && results[0].requires_grad())
          results[0].register_hook([given](const at::Tensor& gradient) {
            do_harm(given.harm);
            return gradient;
          });
        return results;
      };
    }
  };
  Parallel parallel(models::transformer(models::tiny_llama(),
                                        {.tensor = {.ranks = ranks, .sequence = given.sequence}}),
                    mesh, options);
  const at::Tensor ids = (torch::arange(4 * 7) * 37 % 40).view({4, 7});
  for (; *step < 3; ++*step)
    parallel.step(ids.narrow(1, 0, 6), ids.narrow(1, 1, 6), nn::token_cross_entropy());
  ADD_FAILURE() << "no error";
}

void expect_named(const std::string& message, int rank, const Failure& given) {
  const int at_fault = 2 * given.stages - 1;
  EXPECT_THAT(message, HasSubstr(text("rank ", at_fault))) << "rank " << rank;
  if (rank + 1 != at_fault) return;
  EXPECT_THAT(message, ContainsRegex("while the tensor ranks (added up|gathered) 'blocks\\.1\\."))
      << "rank " << rank;
}

class FailingTensorRank : public ::testing::TestWithParam<Failure> {};

TEST_P(FailingTensorRank, IsNamedOnAllRanksWithTheLayerThatWaited) {
  const Failure given = GetParam();
  constexpr auto deadline = 3s;
  const auto processes = run_rank_processes(2 * given.stages, [&] {
    World world = init({.deadline = given.harm == Harm::Stop ? deadline : 30s});
    const auto begin = std::chrono::steady_clock::now();
    try {
      train_until_harm(world, given);
    } catch (const RankError& error) {
      std::cout << "error: " << error.what() << std::endl;
    } catch (const DeadlineError& error) {
      std::cout << "error: " << error.what() << std::endl;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  });
  const int at_fault = 2 * given.stages - 1;
  for (int rank = 0; rank < at_fault; ++rank) {
    const RankProcess& process = processes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(process.exit_code, 0) << "rank " << rank << ": " << process.output;
    EXPECT_EQ(process.signal, 0) << "rank " << rank << ": " << process.output;
    expect_named(process.output, rank, given);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Processes, FailingTensorRank,
    ::testing::Values(Failure{Harm::Kill, When::Forward},
                      Failure{Harm::Kill, When::Backward, 1, false, comm::Check::Off},
                      Failure{Harm::Stop, When::Forward, 1, false, comm::Check::Off},
                      Failure{Harm::Exit, When::Backward, 1, true},
                      Failure{Harm::Throw, When::Forward, 1, true, comm::Check::Off},
                      Failure{Harm::Throw, When::Backward},
                      Failure{Harm::Kill, When::Forward, 2, false, comm::Check::Off},
                      Failure{Harm::Kill, When::Backward, 2}));

TEST(FailingTensorThread, IsNamedOnAllRanksWithTheLayerThatWaited) {
  for (const auto when : {When::Forward, When::Backward})
    for (const int stages : {1, 2})
      for (const bool sequence : {false, true}) {
        const Failure given{Harm::Throw, when, stages, sequence};
        SCOPED_TRACE(text(stages, " stages, ", when == When::Forward ? "forward" : "backward",
                          sequence ? ", sequence" : ""));
        try {
          spawn(2 * stages, [&](World& world) {
            try {
              train_until_harm(world, given);
            } catch (const RankError& error) {
              expect_named(error.what(), world.rank(), given);
              throw;
            }
          });
          ADD_FAILURE() << "no error";
        } catch (const std::out_of_range& error) {
          EXPECT_THAT(error.what(), HasSubstr("a bad index"));
        }
      }
}

}  // namespace
}  // namespace trestle::testing
