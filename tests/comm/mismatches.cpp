#include "tests/comm/mismatches.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>

#include "trestle/comm/rank_error.h"

namespace trestle::testing {

using comm::Group;
using comm::Reduce;

void PrintTo(const Mismatch& mismatch, std::ostream* out) { *out << mismatch.name; }

std::vector<Mismatch> mismatches() {
  return {
      {"shape",
       [](Group& g) {
         g.all_reduce(torch::ones({4, 3 + g.rank()})).wait();
       },
       {"rank 0 calls all_reduce (sum) number 1 on float32 [4, 3]",
        "rank 1 calls all_reduce (sum) number 1 on float32 [4, 4]"}},
      {"dtype",
       [](Group& g) {
         g.broadcast(torch::ones({2}, g.rank() == 0 ? at::kFloat : at::kInt), 0).wait();
       },
       {"broadcast from 0 number 1 on float32 [2]", "broadcast from 0 number 1 on int32 [2]"}},
      {"kind",
       [](Group& g) {
         at::Tensor t = torch::ones({2});
         (g.rank() == 0 ? g.all_reduce(t) : g.broadcast(t, 0)).wait();
       },
       {"rank 0 calls all_reduce (sum)", "rank 1 calls broadcast from 0"}},
      {"operation",
       [](Group& g) {
         g.all_reduce(torch::ones({2}), g.rank() == 0 ? Reduce::Sum : Reduce::Max).wait();
       },
       {"all_reduce (sum)", "all_reduce (max)"}},
      {"root",
       [](Group& g) { g.broadcast(torch::ones({2}), g.rank()).wait(); },
       {"broadcast from 0", "broadcast from 1"}},
      {"order",
       [](Group& g) {
         at::Tensor one = torch::ones({1}), two = torch::ones({2});
         auto first = g.all_reduce(g.rank() == 0 ? one : two);
         auto second = g.all_reduce(g.rank() == 0 ? two : one);
         first.wait();
         second.wait();
       },
       {"number 1 on float32 [1]", "number 1 on float32 [2]"}},
      {"memory_order",
       [](Group& g) {
         at::Tensor t = torch::ones({2, 3, 2, 2});
         if (g.rank() == 1) t = t.contiguous(at::MemoryFormat::ChannelsLast);
         g.all_reduce(t).wait();
       },
       {"rank 1 calls all_reduce (sum) number 1 on float32 [2, 3, 2, 2] with strides [12, 1, 6, "
        "3]"}},
      {"rows",
       [](Group& g) {
         const std::int64_t mine = g.rank() == 0 ? 3 : 2;
         g.all_to_all(torch::ones({4}), torch::ones({2 + mine}), {2, 2}, {2, mine}).wait();
       },
       {"rows of an all_to_all differ: rank 0 sends 12 bytes to rank 1, which expects 8"}},
      {"larger_message",
       [](Group& g) {
         at::Tensor t = torch::ones({g.rank() == 0 ? 1000 : 10});
         (g.rank() == 0 ? g.send(t, 1, 4) : g.receive(t, 0, 4)).wait();
       },
       {"rank 0 calls send with tag 4 of float32 [1000] to 1",
        "rank 1 calls receive with tag 4 of float32 [10] from 0"}},
      {"smaller_message",
       [](Group& g) {
         at::Tensor t = torch::ones({g.rank() == 0 ? 10 : 1000});
         (g.rank() == 0 ? g.send(t, 1) : g.receive(t, 0)).wait();
       },
       {"send with tag 0 of float32 [10]", "receive with tag 0 of float32 [1000]"}},
      {"message_dtype",
       [](Group& g) {
         at::Tensor t = torch::ones({4}, g.rank() == 0 ? at::kFloat : at::kInt);
         (g.rank() == 0 ? g.send(t, 1) : g.receive(t, 0)).wait();
       },
       {"of float32 [4]", "of int32 [4]"}},
      {"uneven_columns",
       [](Group& g) {
         g.all_gather_uneven(torch::ones({2, 3 + g.rank()}));
       },
       {"rank 0 calls all_gather on float32 [rows, 3], rank 1 calls all_gather on float32 [rows, "
        "4]"}},
      {"shape_of_nine_dimensions",
       [](Group& g) {
         const std::int64_t a = 2 + g.rank(), b = 3 - g.rank();
         g.all_reduce(torch::ones({1, 1, 1, 1, 1, 1, 1, a, b})).wait();
       },
       {"rank 0 calls all_reduce (sum) number 1 on float32 [1, 1, 1, 1, 1, 1, 1, ... (9 "
        "dimensions)]",
        "rank 1 calls"}},
  };
}

void expect_mismatch(World& world, const Mismatch& mismatch) {
  Group group = world.group();
  try {
    mismatch.does(group);
    ADD_FAILURE() << "no error on rank " << world.rank();
  } catch (const RankError& error) {
    for (const std::string& words : mismatch.says)
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
          << "rank " << world.rank() << " says: " << error.what();
  }
  EXPECT_TRUE(world.failure().has_value());
  EXPECT_THROW(group.barrier(), RankError);
}

}  // namespace trestle::testing
