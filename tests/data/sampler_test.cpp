#include "trestle/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/random.h"
#include "trestle/data/loader.h"
#include "trestle/data/tensor_dataset.h"
#include "trestle/device/cuda_count.h"

namespace trestle::data {
namespace {

using support::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Indices = std::vector<std::int64_t>;

DistributedSampler sampler_of(std::int64_t count, DistributedSamplerOptions options,
                              std::int64_t epoch = 0) {
  DistributedSampler sampler(count, options);
  sampler.set_epoch(epoch);
  return sampler;
}

// All ranks' examples, in the order in which they were distributed.
Indices dealt(std::int64_t count, DistributedSamplerOptions options, std::int64_t epoch = 0,
              std::int64_t position = 0) {
  std::vector<Indices> of_ranks;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank)
    of_ranks.push_back(sampler_of(count, options, epoch).indices_from(position));
  Indices all;
  for (std::size_t i = 0; i < of_ranks[0].size(); ++i)
    for (const Indices& of_rank : of_ranks) all.push_back(of_rank.at(i));
  return all;
}

std::map<std::int64_t, int> times(const Indices& indices) {
  std::map<std::int64_t, int> times;
  for (const std::int64_t index : indices) ++times[index];
  return times;
}

Indices numbers(const std::string& line) {
  std::istringstream in(line);
  return Indices(std::istream_iterator<std::int64_t>(in), {});
}

// tests/golden/sampler describes the lines.
TEST(Sampler, EqualsPythonsDistributedSampler) {
  std::istringstream file(
      read_file(TRESTLE_SOURCE_DIR "/tests/golden/sampler/distributed_sampler.txt"));
  std::string line;
  std::getline(file, line);  // the version
  int cases = 0;
  while (std::getline(file, line)) {
    const Indices head = numbers(line);
    ASSERT_THAT(head, SizeIs(7));
    const DistributedSampler sampler = sampler_of(head[0],
                                                  {.ranks = static_cast<int>(head[1]),
                                                   .rank = static_cast<int>(head[6]),
                                                   .shuffle = head[2] == 1,
                                                   .seed = static_cast<std::uint64_t>(head[3]),
                                                   .drop_last = head[5] == 1},
                                                  head[4]);
    Indices mine = sampler.indices();
    const auto size = std::ssize(mine);
    EXPECT_EQ(sampler.size(), size) << line;
    if (size > 40) mine.erase(mine.begin() + 20, mine.end() - 20);
    mine.insert(mine.begin(), size);
    std::string expected;
    std::getline(file, expected);
    EXPECT_EQ(mine, numbers(expected)) << line;
    std::getline(file, line);  // empty
    ++cases;
  }
  EXPECT_EQ(cases, 81);
}

TEST(Sampler, PaddingCoversAllExamples) {
  for (const std::int64_t count : {1, 2, 7, 12, 97}) {
    for (const int ranks : {1, 2, 3, 5, 8, 100}) {
      const Indices all = dealt(count, {.ranks = ranks, .seed = 3});
      EXPECT_EQ(std::ssize(all), (count + ranks - 1) / ranks * ranks);
      const auto read = times(all);
      EXPECT_EQ(std::ssize(read), count) << "examples are left out of " << count;
      const auto [least, most] =
          std::ranges::minmax_element(read, {}, [](const auto& example) { return example.second; });
      EXPECT_LE(most->second - least->second, 1);
    }
  }
}

TEST(Sampler, DropLastSizes) {
  for (const std::int64_t count : {1, 7, 8, 12, 97}) {
    for (const int ranks : {1, 2, 5, 8}) {
      const Indices all = dealt(count, {.ranks = ranks, .drop_last = true});
      EXPECT_EQ(std::ssize(all), count / ranks * ranks);
      EXPECT_EQ(times(all).size(), all.size()) << "nothing is padded";
    }
  }
}

TEST(Sampler, EveryEpochHasItsOwnOrder) {
  const Indices first = dealt(50, {.ranks = 2}, 0), second = dealt(50, {.ranks = 2}, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(times(first), times(second));
  EXPECT_EQ(dealt(50, {.ranks = 2}, 1), second) << "an epoch's order is a function of its number";
  EXPECT_EQ(dealt(50, {.ranks = 2, .seed = 1}, 0), second)
      << "seed and epoch are added, as in Python";
  EXPECT_EQ(dealt(50, {.ranks = 2, .shuffle = false}, 0),
            dealt(50, {.ranks = 2, .shuffle = false}, 1));
}

TEST(Sampler, RanksCoverTheDataWithoutOverlap) {
  for (const std::int64_t count : {8, 24, 96}) {
    EXPECT_EQ(times(dealt(count, {.ranks = 8}, 4)).size(), static_cast<std::size_t>(count));
    EXPECT_EQ(std::ssize(dealt(count, {.ranks = 8}, 4)), count);
  }
  // The order does not depend on the number of ranks.
  EXPECT_EQ(dealt(24, {.ranks = 8}, 2), dealt(24, {.ranks = 1}, 2));
  EXPECT_EQ(dealt(24, {.ranks = 3}, 2), dealt(24, {.ranks = 1}, 2));
}

TEST(Sampler, FewerExamplesThanRanks) {
  for (int rank = 0; rank < 7; ++rank) {
    const DistributedSampler sampler(2, {.ranks = 7, .rank = rank, .shuffle = false});
    EXPECT_THAT(sampler.indices(), ElementsAre(rank % 2));
    EXPECT_THAT(DistributedSampler(2, {.ranks = 7, .rank = rank, .drop_last = true}).indices(),
                IsEmpty());
    EXPECT_THAT(DistributedSampler(0, {.ranks = 7, .rank = rank}).indices(), IsEmpty());
  }
}

TEST(Sampler, RejectsInvalidArguments) {
  EXPECT_THROW(DistributedSampler(-1, {}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.ranks = 0}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.ranks = 2, .rank = 2}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.ranks = 2, .rank = -1}), UsageError);
  DistributedSampler sampler(5, {.seed = ~std::uint64_t{0}});
  EXPECT_THROW(sampler.set_epoch(-1), UsageError);
  EXPECT_THROW(sampler.indices_from(6), UsageError);
  EXPECT_THROW(sampler.indices_from(-1), UsageError);
  EXPECT_THAT(sampler.indices(), SizeIs(5));
  sampler.set_epoch(1);
  EXPECT_THROW(sampler.indices(), UsageError) << "the sum does not fit";
}

// Example i has the value i in each tensor.
std::shared_ptr<TensorDataset> counting(std::int64_t count) {
  const at::Tensor numbers = at::arange(count, at::kLong);
  return std::make_shared<TensorDataset>(
      std::vector{numbers.to(at::kDouble).unsqueeze(1), numbers});
}

// The examples of a batch, one number each.
Indices examples(const Batch& batch) {
  const std::int64_t* first = batch.targets.const_data_ptr<std::int64_t>();
  return Indices(first, first + batch.targets.size(0));
}

Loader share(const std::shared_ptr<TensorDataset>& data, int ranks, int rank, std::int64_t batch,
             bool drop_last = false) {
  return Loader(
      data, {.batch = batch,
             .sampler = DistributedSampler(
                 data->size(), {.ranks = ranks, .rank = rank, .seed = 11, .drop_last = drop_last}),
             .workers = 1,
             .prefetch = 2});
}

// The examples that all ranks together read in at most `steps` steps from `*position` of an epoch
// on. Advances `position`, and checks that the ranks agree.
std::vector<Indices> read_steps(std::int64_t count, int ranks, std::int64_t batch, int steps,
                                std::int64_t* position) {
  const auto data = counting(count);
  std::vector<Loader> loaders;
  std::vector<Epoch> epochs;
  for (int rank = 0; rank < ranks; ++rank) {
    loaders.push_back(share(data, ranks, rank, batch));
    epochs.push_back(loaders.back().epoch_from(2, *position));
    EXPECT_EQ(loaders.back().batches_from(*position), loaders.front().batches_from(*position));
  }
  std::vector<Indices> read;
  for (; steps > 0; --steps) {
    Indices together;
    std::optional<std::int64_t> done;
    for (Epoch& epoch : epochs) {
      const auto mine = epoch.next();
      if (!mine) continue;
      EXPECT_EQ(done.value_or(mine->done), mine->done);
      done = mine->done;
      const Indices numbers = examples(*mine);
      together.insert(together.end(), numbers.begin(), numbers.end());
    }
    if (!done) break;
    *position = *done;
    read.push_back(together);
  }
  return read;
}

TEST(Loader, StepsOverRanksEqualOneProcesssBatches) {
  std::int64_t position = 0;
  const auto alone = read_steps(48, 1, 12, 100, &position);
  EXPECT_EQ(position, 48);
  ASSERT_THAT(alone, SizeIs(4));
  for (const int ranks : {2, 3, 4, 6}) {
    position = 0;
    const auto together = read_steps(48, ranks, 12 / ranks, 100, &position);
    ASSERT_EQ(together.size(), alone.size());
    for (std::size_t step = 0; step < alone.size(); ++step)
      EXPECT_EQ(times(together[step]), times(alone[step])) << ranks << " ranks, step " << step;
  }
}

TEST(Loader, ResumesInMidEpochWithTheSameBatches) {
  std::int64_t position = 0;
  const auto whole = read_steps(45, 4, 3, 100, &position);
  EXPECT_EQ(position, 45);
  for (int stop = 0; stop <= 4; ++stop) {
    position = 0;
    auto read = read_steps(45, 4, 3, stop, &position);
    EXPECT_EQ(position, std::min(stop * 12, 45));
    const auto rest = read_steps(45, 4, 3, 100, &position);
    read.insert(read.end(), rest.begin(), rest.end());
    EXPECT_EQ(read, whole) << "the same batches, and the same padding";
    EXPECT_THAT(read_steps(45, 4, 3, 100, &position), IsEmpty()) << "the epoch is over";
  }
}

// Ranks and batches change twice within the epoch.
TEST(Loader, ResumesWithOtherRanksAndReadsEachExampleOnce) {
  Random random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const auto count = static_cast<std::int64_t>(1 + random.below(60));
    std::int64_t position = 0;
    Indices read;
    int ranks = 1;
    for (const int steps :
         {static_cast<int>(random.below(4)), static_cast<int>(random.below(4)), 100}) {
      if (position == count) break;
      ranks = static_cast<int>(1 + random.below(6));
      const auto batch = static_cast<std::int64_t>(1 + random.below(5));
      for (const Indices& step : read_steps(count, ranks, batch, steps, &position))
        read.insert(read.end(), step.begin(), step.end());
    }
    EXPECT_EQ(position, count);
    const auto each = times(read);
    EXPECT_EQ(std::ssize(each), count) << "examples are left out";
    const std::int64_t padding = std::ssize(read) - count;
    EXPECT_LT(padding, ranks) << "examples are read twice";
  }
}

TEST(Loader, ASamplerWithDropLastResumesToo) {
  const auto data = counting(22);
  Indices read;
  for (int rank = 0; rank < 4; ++rank) {
    const Loader loader = share(data, 4, rank, 2, /*drop_last=*/true);
    EXPECT_EQ(loader.batches(), 3);
    EXPECT_EQ(loader.examples(), 5);
    Epoch epoch = loader.epoch_from(0, 8);
    for (const std::int64_t done : {16, 22}) {
      const auto batch = epoch.next();
      EXPECT_EQ(batch->done, done) << "the last batch also counts the dropped examples";
      const Indices numbers = examples(*batch);
      read.insert(read.end(), numbers.begin(), numbers.end());
    }
    EXPECT_FALSE(epoch.next());
  }
  EXPECT_THAT(times(read), SizeIs(12));
  EXPECT_EQ(share(data, 4, 0, 3, true).epoch_from(0, 8).next()->done, 22) << "2 are in no batch";
  const Loader alone(data, {.batch = 5, .last_batch = LastBatch::Drop});
  EXPECT_EQ(alone.read(0, 2).done, 15);
  EXPECT_EQ(alone.read(0, 3).done, 22);
  EXPECT_EQ(share(data, 3, 0, 2, true).batches_from(8), 2);
}

TEST(Loader, ResumesAtAnyExampleWithoutASampler) {
  const auto data = counting(20);
  const Loader loader(data, {.batch = 3, .order = Order::Shuffled, .seed = 5});
  const Indices order = loader.order(1);
  for (const std::int64_t position : {0, 3, 4, 18, 20}) {
    Indices rest;
    std::int64_t index = position / 3, done = position;
    for (const Batch& batch : loader.epoch_from(1, position)) {
      EXPECT_EQ(batch.index, index++);
      done = batch.done;
      const Indices numbers = examples(batch);
      rest.insert(rest.end(), numbers.begin(), numbers.end());
    }
    EXPECT_EQ(done, 20);
    EXPECT_EQ(rest, Indices(order.begin() + position, order.end()));
  }
  EXPECT_THROW(loader.epoch_from(1, 21), UsageError);
  EXPECT_THROW(loader.epoch_from(1, -1), UsageError);
}

TEST(Loader, ABatchMayBeLargerThanTheData) {
  const auto most = std::numeric_limits<std::int64_t>::max();
  const Loader loader = share(counting(9), 4, 1, most);
  EXPECT_EQ(loader.batches(), 1);
  const Batch batch = *loader.epoch_from(0, 2).next();
  EXPECT_EQ(batch.size(), 2);
  EXPECT_EQ(batch.index, 0);
  EXPECT_EQ(batch.done, 9);
}

TEST(Loader, ASamplerDistributesTheGivenIndices) {
  const auto data = counting(30);
  const Loader loader(
      data, {20, 21, 22, 23, 24},
      {.sampler = DistributedSampler(5, {.ranks = 2, .rank = 1, .shuffle = false})});
  EXPECT_THAT(loader.order(0), ElementsAre(21, 23, 20));
  EXPECT_EQ(examples(loader.read(0, 1)), Indices{23});
}

TEST(Loader, RejectsASamplerThatDoesNotFit) {
  const auto data = counting(3);
  EXPECT_THAT(message_of<UsageError>([&] { Loader(data, {.sampler = DistributedSampler(4, {})}); }),
              testing::AllOf(HasSubstr("4"), HasSubstr("3")));
  EXPECT_THAT(message_of<UsageError>([&] {
                Loader(data, {.order = Order::Shuffled, .sampler = DistributedSampler(3, {})});
              }),
              HasSubstr("Order::Shuffled"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Loader(data, {.sampler = DistributedSampler(3, {.ranks = 8, .drop_last = true})});
              }),
              HasSubstr("3 examples over 8 ranks are less than one batch of 1"));
}

TEST(Loader, PinsBatchesIfThereIsAGpu) {
  const LoaderOptions options{.batch = 2, .memory = HostMemory::Pinned};
  if (cuda_count() == 0) {
    EXPECT_THAT(message_of<UsageError>([&] { Loader(counting(3), options); }), HasSubstr("no GPU"));
    return;
  }
  const Batch batch = Loader(counting(3), options).read(0, 0);
  EXPECT_TRUE(batch.inputs.is_pinned() && batch.targets.is_pinned());
  EXPECT_EQ(examples(batch), (Indices{0, 1}));
}

}  // namespace
}  // namespace trestle::data
