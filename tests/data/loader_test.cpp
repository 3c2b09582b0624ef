#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/data/loader.h"

namespace trestle::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Example i is a pair of numbers i; some are slow, one may fail.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}

  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    ++reads;
    std::this_thread::sleep_for(std::chrono::microseconds(index % 3 * 300));
    if (index == bad) throw FormatError("the picture is damaged", {.file = "cars/7.jpg"});
    if (index == foreign) throw std::out_of_range("no such pixel");
    const std::int64_t columns = index == odd ? 3 : 2;
    return {at::full({columns}, static_cast<float>(index)), at::scalar_tensor(index, at::kLong),
            "n" + std::to_string(index)};
  }

  std::int64_t bad = -1, foreign = -1, odd = -1;
  mutable std::atomic<int> reads = 0;

 private:
  std::int64_t size_;
};

std::vector<std::string> all_names(const Loader& loader, std::int64_t epoch,
                                   std::int64_t from = 0) {
  std::vector<std::string> names;
  std::int64_t index = from;
  for (Batch& batch : loader.epoch(epoch, from)) {
    EXPECT_EQ(batch.index, index++);
    EXPECT_EQ(batch.inputs.size(0), batch.size());
    for (std::int64_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ("n" + std::to_string(batch.targets[i].item<std::int64_t>()), batch.names[i]);
      names.push_back(batch.names[i]);
    }
  }
  return names;
}

TEST(Loader, BatchesInTheGivenOrder) {
  const auto data = std::make_shared<Numbers>(10);
  const Loader loader(data, {9, 1, 4, 0, 2}, {.batch = 2});
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(loader.examples(), 5);
  EXPECT_THAT(all_names(loader, 0), ElementsAre("n9", "n1", "n4", "n0", "n2"));
  Epoch epoch = loader.epoch(0);
  const Batch first = *epoch.next();
  EXPECT_EQ(first.inputs.sizes(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(first.targets.sizes(), (std::vector<std::int64_t>{2}));
}

TEST(Loader, DropsTheShortBatch) {
  const auto data = std::make_shared<Numbers>(5);
  const Loader loader(data, {.batch = 2, .last_batch = LastBatch::Drop});
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(loader.examples(), 4);
  EXPECT_THAT(all_names(loader, 0), SizeIs(4));
}

TEST(Loader, OrderDependsOnlyOnSeedAndEpoch) {
  const auto data = std::make_shared<Numbers>(40);
  auto make = [&](std::uint64_t seed, int workers, int prefetch) {
    return Loader(data, {.batch = 3,
                         .order = Order::Shuffled,
                         .seed = seed,
                         .workers = workers,
                         .prefetch = prefetch});
  };
  const auto names = all_names(make(1, 1, 1), 0);
  for (const auto& [workers, prefetch] : {std::pair{4, 1}, std::pair{3, 9}, std::pair{8, 2}}) {
    EXPECT_EQ(all_names(make(1, workers, prefetch), 0), names) << workers;
  }
  EXPECT_NE(all_names(make(1, 2, 4), 1), names);
  EXPECT_NE(all_names(make(2, 2, 4), 0), names);
  auto sorted = names;
  std::ranges::sort(sorted);
  EXPECT_EQ(std::ranges::unique(sorted).size(), 0u);
  EXPECT_THAT(names, SizeIs(40));
}

TEST(Loader, ResumesInMidEpoch) {
  const auto data = std::make_shared<Numbers>(20);
  const Loader loader(data, {.batch = 3, .order = Order::Shuffled, .seed = 5});
  const auto whole = all_names(loader, 2);
  const auto rest = all_names(loader, 2, 4);
  EXPECT_EQ(rest, std::vector(whole.begin() + 12, whole.end()));
  EXPECT_THAT(all_names(loader, 2, loader.batches()), SizeIs(0));
  EXPECT_THROW(loader.epoch(2, loader.batches() + 1), UsageError);
}

TEST(Loader, ReadsNoFurtherAheadThanAllowed) {
  const auto data = std::make_shared<Numbers>(100);
  const Loader loader(data, {.batch = 2, .workers = 3, .prefetch = 2});
  Epoch epoch = loader.epoch(0);
  epoch.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(data->reads, 6);
}

TEST(Loader, AnErrorArrivesAtItsBatchWithTypeAndExample) {
  const auto data = std::make_shared<Numbers>(12);
  data->bad = 7;
  const Loader loader(data, {.batch = 2, .workers = 4});
  Epoch epoch = loader.epoch(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(epoch.next()->index, i);
  try {
    epoch.next();
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cars/7.jpg"));
    EXPECT_THAT(error.what(), HasSubstr("while reading example 7"));
  }
  EXPECT_FALSE(epoch.next().has_value());
}

TEST(Loader, OtherExceptionsAreNested) {
  const auto data = std::make_shared<Numbers>(4);
  data->foreign = 1;
  const Loader loader(data, {.batch = 2});
  Epoch epoch = loader.epoch(0);
  try {
    epoch.next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("while reading example 1: no such pixel"));
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(Loader, AnExampleOfAnotherShapeIsNamed) {
  const auto data = std::make_shared<Numbers>(4);
  data->odd = 3;
  const Loader loader(data, {.batch = 4});
  Epoch epoch = loader.epoch(0);
  try {
    epoch.next();
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("'n3'"), HasSubstr("[3]"), HasSubstr("[2]")));
  }
}

TEST(Loader, StoppingEarlyJoinsTheWorkers) {
  const auto data = std::make_shared<Numbers>(500);
  for (int round = 0; round < 20; ++round) {
    Loader loader(data, {.batch = 2, .workers = 3, .prefetch = 1 + round % 5});
    Epoch epoch = loader.epoch(round);
    for (int i = 0; i < round % 4; ++i) epoch.next();
    if (round % 2 == 0) epoch = loader.epoch(round + 1);  // replaces a running one
  }
  const int reads = data->reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(data->reads, reads);
}

TEST(Loader, OtherThreadsKeepTheirThreadCounts) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const Loader loader(std::make_shared<Numbers>(6), {.batch = 2});
  all_names(loader, 0);
  EXPECT_EQ(at::get_num_threads(), 3);
  int in_new_thread = 0;
  std::thread([&] { in_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(in_new_thread, 3);
  at::set_num_threads(before);
}

TEST(Loader, RejectsInvalidArguments) {
  const auto data = std::make_shared<Numbers>(3);
  EXPECT_THROW(Loader(data, {.batch = 0}), UsageError);
  EXPECT_THROW(Loader(data, {.workers = 0}), UsageError);
  EXPECT_THROW(Loader(data, {.prefetch = 0}), UsageError);
  EXPECT_THROW(Loader(data, {0, 3}, {}), UsageError);
  EXPECT_THROW(Loader(data, {.batch = 4, .last_batch = LastBatch::Drop}), UsageError);
  EXPECT_THROW(Loader(std::make_shared<Numbers>(0), {}), UsageError);
}

TEST(Loader, OnePartHasTheBitsOfBoth) {
  LoaderOptions options{.batch = 4, .order = Order::Shuffled, .seed = 3};
  options.transform = [](Sample sample, std::uint64_t key) {
    EXPECT_TRUE(sample.input.defined() && sample.target.defined()) << "get_part() calls get()";
    sample.input = sample.input + static_cast<double>(key % 100);
    sample.target = sample.target + static_cast<std::int64_t>(key % 100);
    return sample;
  };
  const Loader loader(std::make_shared<Numbers>(11), options);
  Epoch both = loader.epoch(1), inputs = loader.epoch(1, 0, Part::Input),
        targets = loader.epoch(1, 0, Part::Target);
  while (const auto whole = both.next()) {
    const auto input = inputs.next(), target = targets.next();
    EXPECT_TRUE(input->inputs.equal(whole->inputs));
    EXPECT_TRUE(target->targets.equal(whole->targets));
    EXPECT_FALSE(input->targets.defined() || target->inputs.defined());
    EXPECT_EQ(input->names, whole->names);
    EXPECT_EQ(target->names, whole->names);
    const Batch again = loader.read(1, whole->index);
    EXPECT_TRUE(again.inputs.equal(whole->inputs) && again.targets.equal(whole->targets));
    EXPECT_EQ(again.index, whole->index);
  }
  EXPECT_FALSE(inputs.next().has_value());
  EXPECT_THROW(loader.read(0, 3), UsageError);
  EXPECT_THROW(loader.read(0, -1), UsageError);
}

// The shares of a batch together are the batch, including a short one.
TEST(Loader, SharesTogetherAreTheBatch) {
  const auto numbers = std::make_shared<Numbers>(23);
  const Loader loader(numbers, {.batch = 7, .order = Order::Shuffled, .seed = 3});
  for (const int parts : {1, 2, 3, 5}) {
    for (std::int64_t batch = 0; batch < loader.batches(); ++batch) {
      const Batch whole = loader.read(1, batch);
      std::vector<std::string> names;
      for (int part = 0; part < parts; ++part) {
        const Batch own = loader.read(1, batch, Part::Both, {.part = part, .parts = parts});
        names.insert(names.end(), own.names.begin(), own.names.end());
        EXPECT_EQ(own.index, batch);
        EXPECT_EQ(own.done, whole.done);
        EXPECT_EQ(own.inputs.defined(), own.size() > 0);
      }
      EXPECT_EQ(names, whole.names);
    }
  }
}

}  // namespace
}  // namespace trestle::data
