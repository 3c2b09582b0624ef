// Collectives over ranks: sums, means, shards, messages, text, and groups of a mesh.
//
//     collectives                               four ranks, threads of this process
//     trestle launch -n 2 -- collectives        two processes; torchrun, srun and mpirun work too
#include <torch/types.h>
#include <trestle/comm/threads/spawn.h>
#include <trestle/comm/world.h>
#include <trestle/mesh/device_mesh.h>

#include <exception>
#include <iostream>

namespace {

using trestle::comm::Work;

// [sums]
// The mean gradient over all ranks, as in data-parallel training.
at::Tensor mean_over_ranks(const trestle::comm::Group& group, at::Tensor gradient) {
  group.all_reduce(gradient).wait();
  return gradient.div_(group.size());
}
// [sums]

// [ring]
// Each rank sends its tensor to the next rank. Post receives first: a send may wait for its
// receive.
at::Tensor from_the_rank_before(const trestle::comm::Group& group, const at::Tensor& mine) {
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  at::Tensor theirs = torch::empty_like(mine);
  Work receive = group.receive(theirs, before);
  Work send = group.send(mine, next);
  receive.wait();
  send.wait();
  return theirs;
}
// [ring]

// The work of each rank. Returns whether all results are correct.
bool work(const trestle::World& world) {
  const trestle::comm::Group group = world.group();
  const int size = group.size(), rank = group.rank();

  const at::Tensor mean = mean_over_ranks(group, torch::full({3}, 1.0 + rank));
  bool right = mean.eq((size + 1) / 2.0).all().item<bool>();

  // [shards]
  // The two halves of an all_reduce: each rank gets a shard of the sum, then all shards.
  at::Tensor shard = torch::empty({2});
  group.reduce_scatter(shard, torch::ones({2 * size})).wait();  // 2 numbers per rank
  at::Tensor whole = torch::empty({2 * size});
  group.all_gather(whole, shard).wait();
  // [shards]
  right = right && whole.eq(size).all().item<bool>();

  if (size > 1) {
    const at::Tensor theirs = from_the_rank_before(group, torch::full({2}, 1.0 * rank));
    right = right && theirs.eq((rank + size - 1) % size).all().item<bool>();
  }

  // [mesh]
  // Two rows of ranks. The ranks of a column have the same position in their rows.
  if (size % 2 == 0) {
    const trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", size / 2}});
    at::Tensor ranks_of_column = torch::full({1}, 1.0 * rank);
    mesh.group("replicate").all_reduce(ranks_of_column).wait();
    right = right && ranks_of_column.item<double>() == 2.0 * mesh.coordinate("shard") + size / 2;
    if (rank == 0) std::cout << mesh.layout().picture();
  }
  // [mesh]

  // [text]
  const std::vector<std::string> all = group.all_gather_bytes(right ? "right" : "wrong");
  // [text]
  if (rank == 0) {
    std::cout << size << " ranks (" << world.backend() << "), the mean of 1 to " << size << " is "
              << mean[0].item<double>() << "\n";
    for (int r = 0; r < size; ++r) std::cout << "rank " << r << ": " << all[r] << "\n";
  }
  return right;
}

}  // namespace

int main() {
  try {
    // [start]
    const trestle::World world = trestle::init();  // one rank, if no launcher started this process
    if (world.size() > 1) return work(world) ? 0 : 1;
    const auto right = trestle::spawn(4, [](trestle::World& rank) { return work(rank); });
    // [start]
    for (const bool one : right)
      if (!one) return 1;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
