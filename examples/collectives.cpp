// Ranks that work together: sums, averages, pieces, messages, text, and a mesh of them.
//
//     collectives                               four ranks, threads of this process
//     trestle launch -n 2 -- collectives        two processes; torchrun, srun and mpirun do as well
#include <torch/types.h>
#include <trestle/comm/spawn.h>
#include <trestle/comm/world.h>
#include <trestle/mesh/device_mesh.h>

#include <exception>
#include <iostream>

namespace {

using trestle::comm::Work;

// [sums]
// The gradient of all ranks' batches, as data parallel training takes it: the mean.
at::Tensor mean_over_ranks(const trestle::comm::Group& group, at::Tensor gradient) {
  group.all_reduce(gradient).wait();
  return gradient.div_(group.size());
}
// [sums]

// [ring]
// Each rank gives its tensor to the next one. Receives are posted first: a send may wait for its receive.
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

// What one rank does; the others do the same. Returns whether all of it came out right.
bool work(const trestle::World& world) {
  const trestle::comm::Group group = world.group();
  const int size = group.size(), rank = group.rank();

  const at::Tensor mean = mean_over_ranks(group, torch::full({3}, 1.0 + rank));
  bool right = mean.eq((size + 1) / 2.0).all().item<bool>();

  // [pieces]
  // Each rank keeps a piece of the sum, and then all have all pieces again: an all_reduce in two halves.
  at::Tensor piece = torch::empty({2});
  group.reduce_scatter(piece, torch::ones({2 * size})).wait();  // 2 numbers for each rank
  at::Tensor whole = torch::empty({2 * size});
  group.all_gather(whole, piece).wait();
  // [pieces]
  right = right && whole.eq(size).all().item<bool>();

  if (size > 1) {
    const at::Tensor theirs = from_the_rank_before(group, torch::full({2}, 1.0 * rank));
    right = right && theirs.eq((rank + size - 1) % size).all().item<bool>();
  }

  // [mesh]
  // An even number of ranks in two rows. Those of a column have the same place in their row.
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
    const trestle::World world = trestle::init();  // who am I? one lone rank, if nobody says
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
