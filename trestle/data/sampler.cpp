#include "trestle/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <limits>
#include <numeric>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {

DistributedSampler::DistributedSampler(std::int64_t count, DistributedSamplerOptions options)
    : count_(count), options_(options) {
  if (count < 0) throw UsageError(text("cannot distribute ", count, " examples over ranks"));
  if (options_.ranks < 1)
    throw UsageError(text("cannot distribute examples over ", options_.ranks, " ranks"));
  if (options_.rank < 0 || options_.rank >= options_.ranks)
    throw UsageError(text("there is no rank ", options_.rank, ": the sampler has the ranks 0 to ",
                          options_.ranks - 1));
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw UsageError(text("there is no epoch ", epoch, ": the first epoch is 0"));
  epoch_ = epoch;
}

std::int64_t DistributedSampler::size_from(std::int64_t position) const {
  if (position < 0 || position > count_)
    throw UsageError(text("an epoch of ", count_, " examples cannot resume at ", position));
  const std::int64_t rest = count_ - position;
  const std::int64_t ranks = options_.ranks;
  return rest / ranks + (rest % ranks != 0 && !options_.drop_last ? 1 : 0);
}

// The order of all ranks, before it is distributed.
std::vector<std::int64_t> DistributedSampler::order() const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count_));
  if (!options_.shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const auto epoch = static_cast<std::uint64_t>(epoch_);
  if (options_.seed > std::numeric_limits<std::uint64_t>::max() - epoch)
    throw UsageError(text("the sum of the sampler's seed ", options_.seed, " and epoch ", epoch,
                          " does not fit into 64 bits"));
  const at::Tensor drawn = at::randperm(
      count_, at::make_generator<at::CPUGeneratorImpl>(options_.seed + epoch), at::kLong);
  const std::int64_t* first = drawn.const_data_ptr<std::int64_t>();
  order.assign(first, first + count_);
  return order;
}

std::vector<std::int64_t> DistributedSampler::indices_from(std::int64_t position) const {
  const std::int64_t size = size_from(position);
  const std::vector<std::int64_t> all = order();
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t place = position + i * options_.ranks + options_.rank;
    mine.push_back(all[static_cast<std::size_t>(place % count_)]);  // past the end: the padding
  }
  return mine;
}

}  // namespace trestle::data
