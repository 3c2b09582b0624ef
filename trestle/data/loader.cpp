#include "trestle/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

using PartOfSample = at::Tensor Sample::*;

std::vector<PartOfSample> parts_of(Part part) {
  if (part == Part::Input) return {&Sample::input};
  if (part == Part::Target) return {&Sample::target};
  return {&Sample::input, &Sample::target};
}

// Names the odd example, which torch's own message would not.
void check_can_stack(const std::vector<Sample>& samples, Part wanted) {
  auto differ = [](const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type();
  };
  for (const Sample& sample : samples) {
    for (const auto part : parts_of(wanted)) {
      if (!(sample.*part).defined() || !(sample.*part).device().is_cpu()) {
        throw UsageError(text("example '", sample.name, "' is not made of CPU tensors"));
      }
      if (!differ(sample.*part, samples[0].*part)) continue;
      const std::string_view what = part == &Sample::input ? "input" : "target";
      throw FormatError(
          text("the ", what, " of '", sample.name, "' is ", (sample.*part).sizes(), " ",
               (sample.*part).scalar_type(), ", that of '", samples[0].name, "' in the same batch ",
               (samples[0].*part).sizes(), " ", (samples[0].*part).scalar_type()),
          {.hint = "A batch needs examples of one shape: resize them, or use batches of 1."});
    }
  }
}

// Only called from a catch block.
[[noreturn]] void rethrow_with_example(std::int64_t example) {
  const std::string context = text("while reading example ", example);
  try {
    throw;
  } catch (Error& error) {
    error.add_context(context);
    throw;
  } catch (c10::Error& error) {  // stays libtorch's own, which says what memory is missing
    error.add_context(context);
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(text(context, ": ", error.what())));
  }
}

// By hand and not with at::stack, which wakes intra-op threads: beside a training they are in the
// way, and at::set_num_threads(1) here would also become the default of threads that start later.
void stack(const std::vector<Sample>& samples, PartOfSample part, at::Tensor& out) {
  if (!out.defined()) return;  // not wanted
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (const Sample& sample : samples) {
    const at::Tensor from = (sample.*part).contiguous();
    if (from.nbytes() > 0) std::memcpy(to, from.const_data_ptr(), from.nbytes());
    to += from.nbytes();
  }
}

// For `count` examples like this one. Before the others are read: where there is no room for them,
// they need not be. Nothing for an example that check_can_stack() refuses.
at::Tensor room_for(std::int64_t count, const at::Tensor& example) {
  if (!example.defined() || !example.device().is_cpu()) return {};
  std::vector<std::int64_t> sizes = example.sizes().vec();
  sizes.insert(sizes.begin(), count);
  return at::empty(sizes, example.options().requires_grad(false));
}

// With both parts where the data set has both: a transform may look at either.
Sample read_example(const Dataset& dataset, std::int64_t example, std::int64_t epoch, Part part,
                    const LoaderOptions& options) {
  constexpr std::int64_t of_a_transform = -2;  // order() has -1
  Sample sample = part == Part::Both ? dataset.get(example) : dataset.get_part(example, part);
  if (options.transform)
    sample = options.transform(std::move(sample),
                               keyed_seed(options.seed, epoch, example, of_a_transform));
  if (part == Part::Input) sample.target.reset();
  if (part == Part::Target) sample.input.reset();
  return sample;
}

Batch read_batch(const Dataset& dataset, const std::vector<std::int64_t>& order, std::int64_t index,
                 std::int64_t epoch, Part part, const LoaderOptions& options) {
  std::vector<Sample> samples;
  Batch batch;
  batch.index = index;
  const std::int64_t first = index * options.batch;
  const std::int64_t count = std::min<std::int64_t>(options.batch, std::ssize(order) - first);
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::int64_t example = order[static_cast<std::size_t>(i)];
    try {
      samples.push_back(read_example(dataset, example, epoch, part, options));
    } catch (...) {
      rethrow_with_example(example);
    }
    if (samples.size() > 1) continue;
    batch.inputs = room_for(count, samples[0].input);
    batch.targets = room_for(count, samples[0].target);
  }
  check_can_stack(samples, part);
  stack(samples, &Sample::input, batch.inputs);
  stack(samples, &Sample::target, batch.targets);
  for (Sample& sample : samples) batch.names.push_back(std::move(sample.name));
  return batch;
}

struct Slot {
  Batch batch;
  std::exception_ptr error;
};

}  // namespace

struct Epoch::State {
  std::shared_ptr<const Dataset> dataset;
  std::vector<std::int64_t> order;
  LoaderOptions options;
  std::int64_t epoch = 0;
  Part part = Part::Both;
  std::int64_t batches = 0;

  std::mutex mutex;
  std::condition_variable slot_filled;
  std::condition_variable room_made;
  std::map<std::int64_t, Slot> slots;  // finished, not yet taken
  std::int64_t claimed = 0;            // the next batch that a worker takes up
  std::int64_t taken = 0;              // the next batch that the consumer wants
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
    slot.batch = read_batch(*dataset, order, batch, epoch, part, options);
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
      throw UsageError(text("example ", index, " of ", size, " was asked for"));
  }
  if (batches() == 0) {
    throw UsageError(text(indices_.size(), " examples give no batch of ", options_.batch),
                     {.hint = "Use a smaller batch, or keep the last short one."});
  }
}

namespace {

std::vector<std::int64_t> all_of(const Dataset& dataset) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : Loader(dataset, all_of(*dataset), std::move(options)) {}

std::int64_t Loader::batches() const {
  const std::int64_t count = std::ssize(indices_);
  const std::int64_t rounding = options_.last_batch == LastBatch::Keep ? options_.batch - 1 : 0;
  return (count + rounding) / options_.batch;
}

std::int64_t Loader::examples() const {
  return std::min<std::int64_t>(batches() * options_.batch, std::ssize(indices_));
}

std::vector<std::int64_t> Loader::order(std::int64_t epoch) const {
  std::vector<std::int64_t> order = indices_;
  if (options_.order == Order::Shuffled) {
    Random random(keyed_seed(options_.seed, epoch, -1, -1));
    shuffle(order, random);
  }
  order.resize(static_cast<std::size_t>(examples()));
  return order;
}

Batch Loader::read(std::int64_t epoch, std::int64_t index, Part part) const {
  if (index < 0 || index >= batches())
    throw UsageError(
        text("batch ", index, " of an epoch of ", batches(), " batches was asked for"));
  return read_batch(*dataset_, order(epoch), index, epoch, part, options_);
}

Epoch Loader::epoch(std::int64_t epoch, std::int64_t first_batch, Part part) const {
  if (first_batch < 0 || first_batch > batches()) {
    throw UsageError(
        text("an epoch of ", batches(), " batches cannot start at batch ", first_batch));
  }
  auto state = std::make_unique<Epoch::State>();
  state->dataset = dataset_;
  state->order = order(epoch);
  state->options = options_;
  state->epoch = epoch;
  state->part = part;
  state->batches = batches();
  state->claimed = state->taken = first_batch;
  const auto wanted = std::min<std::int64_t>(options_.workers, batches() - first_batch);
  for (std::int64_t i = 0; i < wanted; ++i) {
    state->workers.emplace_back([raw = state.get()] { raw->work(); });
  }
  return Epoch(std::move(state));
}

}  // namespace trestle::data
