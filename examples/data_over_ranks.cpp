// Each rank reads its share of the data. Four ranks stop in mid-epoch; three ranks resume.
#include <trestle/comm/threads/spawn.h>
#include <trestle/data/loader.h>
#include <trestle/data/tensor_dataset.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <exception>
#include <iostream>
#include <memory>

namespace {

using trestle::data::Batch;
using trestle::data::DistributedSampler;
using trestle::data::Loader;
using trestle::data::TensorDataset;

struct Progress {
  std::int64_t done = 0;  // examples of the epoch that all ranks have read
  at::Tensor how_often;   // reads per example, summed over the ranks
};

// `ranks` ranks read epoch 3 from example `done`, and stop after `steps` steps.
Progress read_from(const std::shared_ptr<TensorDataset>& data, int ranks, std::int64_t done,
                   int steps) {
  const auto all = trestle::spawn(ranks, [&](trestle::World& world) {
    // [share]
    const Loader loader(
        data, {.batch = 4,
               .sampler = DistributedSampler(
                   data->size(), {.ranks = world.size(), .rank = world.rank(), .seed = 42})});
    Progress progress{.done = done, .how_often = at::zeros({data->size()}, at::kLong)};
    int step = 0;
    for (Batch& batch : loader.epoch_from(/*epoch=*/3, done)) {
      progress.how_often.index_add_(0, batch.targets, at::ones_like(batch.targets));  // "training"
      progress.done = batch.done;  // stored in a checkpoint
      if (++step == steps) break;
    }
    // [share]
    world.group().all_reduce(progress.how_often).wait();
    return progress;
  });
  return all[0];
}

}  // namespace

int main() {
  try {
    // [tensors]
    const at::Tensor inputs = at::rand({101, 3, 8, 8}), targets = at::arange(101, at::kLong);
    const auto data = std::make_shared<TensorDataset>(std::vector{inputs, targets});
    // [tensors]
    const Progress first = read_from(data, 4, 0, 3);
    std::cout << "4 ranks read " << first.done << " of " << data->size()
              << " examples, then stop\n";
    const Progress second = read_from(data, 3, first.done, 1000);
    const at::Tensor how_often = first.how_often + second.how_often;
    const auto least = how_often.min().item<std::int64_t>();
    const auto again = how_often.sum().item<std::int64_t>() - data->size();
    std::cout << "3 ranks read the remaining " << second.done - first.done << "\n"
              << "each example was read at least " << least << " time, " << again
              << " a second time, as padding of the sampler\n";
    return first.done == 48 && second.done == 101 && least == 1 && again == 1 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
