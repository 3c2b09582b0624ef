#include "trestle/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/data/read_batch.h"
#include "trestle/device/cuda_count.h"

namespace trestle::data {
namespace {

struct Slot {
  Batch batch;
  std::exception_ptr error;
};

// Number of batches from `count` examples.
std::int64_t batches_of(std::int64_t count, const LoaderOptions& options) {
  const bool has_short_one = options.last_batch == LastBatch::Keep && count % options.batch != 0;
  return count / options.batch + (has_short_one ? 1 : 0);
}

int ranks_of(const LoaderOptions& options) {
  return options.sampler ? options.sampler->options().ranks : 1;
}

// The examples that a rank reads in an epoch after the first `position` examples of all ranks.
struct BatchOrder {
  std::vector<std::int64_t> examples = {};
  std::int64_t position = 0;
  std::int64_t all = 0;  // examples of the epoch, over all ranks
};

Batch read_of_order(const Dataset& dataset, const BatchOrder& order, std::int64_t number,
                    std::int64_t epoch, Part part, const LoaderOptions& options, Share share) {
  const std::int64_t first = number * options.batch, left = std::ssize(order.examples) - first;
  const std::int64_t count = std::min(options.batch, left);
  const std::int64_t begin = count * share.part / share.parts;
  const std::int64_t own = count * (share.part + 1) / share.parts - begin;
  Batch batch;
  if (own > 0)
    batch = read_batch(dataset, std::span(order.examples).subspan(first + begin, own), epoch, part,
                       options);
  const std::int64_t of_a_step = std::min(options.batch, order.all) * ranks_of(options);
  batch.index = order.position / of_a_step + number;
  // The last batch also counts the dropped examples.
  batch.done =
      count == left ? order.all : std::min(order.position + (number + 1) * of_a_step, order.all);
  return batch;
}

}  // namespace

struct Epoch::State {
  std::shared_ptr<const Dataset> dataset;
  BatchOrder order;
  LoaderOptions options;
  std::int64_t epoch = 0;
  Part part = Part::Both;
  Share share;
  std::int64_t batches = 0;  // of the order

  std::mutex mutex;
  std::condition_variable slot_filled;
  std::condition_variable room_made;
  std::map<std::int64_t, Slot> slots;  // finished, not yet taken
  std::int64_t claimed = 0;            // the next batch that a worker reads
  std::int64_t taken = 0;              // the next batch that the consumer takes
  bool stopping = false;
  std::vector<std::thread> workers;

  ~State() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room_made.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  void work();
  Slot read(std::int64_t batch) const;
};

Slot Epoch::State::read(std::int64_t batch) const {
  Slot slot;
  try {
    slot.batch = read_of_order(*dataset, order, batch, epoch, part, options, share);
  } catch (...) {
    slot.error = std::current_exception();
  }
  return slot;
}

void Epoch::State::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    room_made.wait(
        lock, [&] { return stopping || claimed == batches || claimed < taken + options.prefetch; });
    if (stopping || claimed == batches) return;
    const std::int64_t batch = claimed++;
    lock.unlock();
    Slot slot = read(batch);
    lock.lock();
    slots.emplace(batch, std::move(slot));
    slot_filled.notify_one();
  }
}

Epoch::Epoch(std::unique_ptr<State> state) : state_(std::move(state)) {}
Epoch::~Epoch() = default;
Epoch::Epoch(Epoch&&) noexcept = default;
Epoch& Epoch::operator=(Epoch&&) noexcept = default;

std::optional<Batch> Epoch::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stopping || state.taken == state.batches) return std::nullopt;
  state.slot_filled.wait(lock, [&] { return state.slots.contains(state.taken); });
  auto node = state.slots.extract(state.taken);
  ++state.taken;
  lock.unlock();
  state.room_made.notify_all();
  Slot& slot = node.mapped();
  if (slot.error) {
    state.stop();
    std::rethrow_exception(slot.error);
  }
  return std::move(slot.batch);
}

namespace {

std::vector<std::int64_t> all_of(const Dataset& dataset) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

void check_sampler(const DistributedSampler& sampler, std::int64_t examples, Order order) {
  if (sampler.count() != examples)
    throw UsageError(
        text("the sampler has ", sampler.count(), " examples, but the loader has ", examples));
  if (order == Order::Shuffled)
    throw UsageError("the loader has both a sampler and Order::Shuffled",
                     {.hint = "Leave the order out: the sampler shuffles, with its own seed."});
}

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
               LoaderOptions options)
    : dataset_(std::move(dataset)), indices_(std::move(indices)), options_(std::move(options)) {
  auto positive = [](std::string_view name, std::int64_t value) {
    if (value < 1)
      throw UsageError(text("the loader's ", name, " is ", value, ": it must be at least 1"));
  };
  positive("batch", options_.batch);
  positive("workers", options_.workers);
  positive("prefetch", options_.prefetch);
  const std::int64_t size = dataset_->size();
  for (const std::int64_t index : indices_) {
    if (index < 0 || index >= size)
      throw UsageError(text("example ", index, " is out of range: there are ", size, " examples"));
  }
  if (options_.sampler) check_sampler(*options_.sampler, std::ssize(indices_), options_.order);
  if (batches() == 0) {
    const int ranks = ranks_of(options_);
    throw UsageError(text(indices_.size(), " examples ",
                          ranks > 1 ? text("over ", ranks, " ranks ") : std::string(),
                          "are less than one batch of ", options_.batch),
                     {.hint = "Use a smaller batch, or keep the last short one."});
  }
  if (options_.memory == HostMemory::Pinned && cuda_count() == 0)
    throw UsageError("batches in pinned memory were requested, but this process sees no GPU",
                     {.hint = "Leave out HostMemory::Pinned: it only speeds up copies to a GPU."});
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : Loader(dataset, all_of(*dataset), std::move(options)) {}

// The examples of this rank, including an incomplete last batch.
std::int64_t Loader::count_from(std::int64_t position) const {
  if (options_.sampler) return options_.sampler->size_from(position);
  const std::int64_t all = std::ssize(indices_);
  if (position < 0 || position > all)
    throw UsageError(text("an epoch of ", all, " examples cannot resume at ", position));
  return all - position;
}

std::int64_t Loader::batches_from(std::int64_t position) const {
  return batches_of(count_from(position), options_);
}

std::int64_t Loader::examples() const {
  return std::min<std::int64_t>(batches() * options_.batch, count_from(0));
}

std::vector<std::int64_t> Loader::order_from(std::int64_t epoch, std::int64_t position) const {
  std::vector<std::int64_t> order;
  if (options_.sampler) {
    DistributedSampler sampler = *options_.sampler;
    sampler.set_epoch(epoch);
    order = sampler.indices_from(position);
    for (std::int64_t& place : order) place = indices_[static_cast<std::size_t>(place)];
  } else {
    order = indices_;
    if (options_.order == Order::Shuffled) {
      Random random(keyed_seed(options_.seed, epoch, -1, -1));
      shuffle(order, random);
    }
    order.erase(order.begin(), order.begin() + position);
  }
  const std::int64_t of_batches = batches_from(position) * options_.batch;
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(of_batches, std::ssize(order))));
  return order;
}

Batch Loader::read(std::int64_t epoch, std::int64_t index, Part part, Share share) const {
  if (index < 0 || index >= batches())
    throw UsageError(
        text("batch ", index, " is out of range: an epoch has ", batches(), " batches"));
  const BatchOrder all{.examples = order(epoch), .all = std::ssize(indices_)};
  return read_of_order(*dataset_, all, index, epoch, part, options_, share);
}

Epoch Loader::epoch(std::int64_t epoch, std::int64_t first_batch, Part part, Share share) const {
  if (first_batch < 0 || first_batch > batches()) {
    throw UsageError(
        text("an epoch of ", batches(), " batches cannot start at batch ", first_batch));
  }
  return start(epoch, 0, first_batch, part, share);
}

Epoch Loader::epoch_from(std::int64_t epoch, std::int64_t position, Part part) const {
  return start(epoch, position, 0, part, {});
}

Epoch Loader::start(std::int64_t epoch, std::int64_t position, std::int64_t first_batch, Part part,
                    Share share) const {
  auto state = std::make_unique<Epoch::State>();
  state->batches = batches_from(position);
  state->dataset = dataset_;
  state->order = {order_from(epoch, position), position, std::ssize(indices_)};
  state->options = options_;
  state->epoch = epoch;
  state->part = part;
  state->share = share;
  state->claimed = state->taken = first_batch;
  const auto wanted = std::min<std::int64_t>(options_.workers, state->batches - first_batch);
  for (std::int64_t i = 0; i < wanted; ++i) {
    state->workers.emplace_back([raw = state.get()] { raw->work(); });
  }
  return Epoch(std::move(state));
}

}  // namespace trestle::data
