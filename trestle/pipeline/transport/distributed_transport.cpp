#include "trestle/pipeline/transport/distributed_transport.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/device/stream_event.h"
#include "trestle/pipeline/transport/message_tags.h"
#include "trestle/pipeline/transport/missed_deadline.h"

namespace trestle::pipeline {
namespace {

// How many messages are received beyond the one that the rank needs next.
constexpr std::size_t prefetched = 1;

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()),
          static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

DistributedTransport::DistributedTransport(std::shared_ptr<RankLink> link,
                                           const schedule::Schedule& table,
                                           std::vector<schedule::Route> routes,
                                           std::chrono::milliseconds deadline,
                                           device::CopyStreams& copies)
    : link_(std::move(link)),
      routes_(std::move(routes)),
      rank_of_stage_(table.rank_of_stage),
      micro_batches_(table.micro_batches),
      deadline_(deadline),
      serial_(link_->serial()),
      local_(routes_, rank_of_stage_, table.rank_count(), micro_batches_, deadline, copies),
      slots_(routes_.size() * static_cast<std::size_t>(table.micro_batches) * 2) {}

// The link's threads use this object until all messages have arrived, or until soon after a
// failure.
DistributedTransport::~DistributedTransport() {
  std::unique_lock lock(mutex_);
  if (taken_ < expected_ && !failure_) {
    lock.unlock();
    cancel(std::make_exception_ptr(
        StateError("a step of the pipeline was abandoned before all its messages arrived")));
    lock.lock();
  }
  changed_.wait(lock, [this] { return jobs_ == 0; });
}

std::size_t DistributedTransport::slot_of(const Transfer& transfer) const {
  return (static_cast<std::size_t>(transfer.route) * static_cast<std::size_t>(micro_batches_) +
          static_cast<std::size_t>(transfer.micro_batch)) *
             2 +
         (transfer.way == Transfer::Way::Gradient ? 1 : 0);
}

int DistributedTransport::tag_of(const Transfer& transfer) const {
  return first_stage_tag + static_cast<int>(slot_of(transfer));
}

int DistributedTransport::sender_of(const Transfer& transfer) const {
  const auto& route = routes_.at(static_cast<std::size_t>(transfer.route));
  return rank_of(transfer.way == Transfer::Way::Gradient ? route.to_stage : route.from_stage);
}

int DistributedTransport::receiver_of(const Transfer& transfer) const {
  const auto& route = routes_.at(static_cast<std::size_t>(transfer.route));
  return rank_of(transfer.way == Transfer::Way::Gradient ? route.from_stage : route.to_stage);
}

void DistributedTransport::expect(int, std::vector<Expected> receives) {
  if (receives.empty()) return;
  std::vector<Posted> posted;  // for the link's thread
  for (std::size_t place = 0; place < receives.size(); ++place) {
    const Transfer& transfer = receives[place].transfer;
    const int from = sender_of(transfer), tag = tag_of(transfer);
    Posted one{.expected = receives[place], .place = place};
    one.first = link_->first_parts().to_receive(from, tag);
    one.work = link_->receive(one.first, from, tag);
    if (link_->first_parts().comes_whole(from, tag))
      posted_.insert_or_assign(slot_of(transfer), std::move(one));
    else
      posted.push_back(std::move(one));
  }
  {
    const std::lock_guard lock(mutex_);
    taken_ = 0;
    expected_ = receives.size();
    if (posted.empty()) return;
    ++jobs_;
  }
  link_->in_background([this, posted = std::move(posted)]() mutable {
    receive_all(std::move(posted));
    const std::lock_guard lock(mutex_);
    --jobs_;
    changed_.notify_all();
  });
}

void DistributedTransport::receive_all(std::vector<Posted> posted) {
  try {
    for (Posted& one : posted) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock,
                      [&] { return one.place <= taken_ + prefetched || failure_ != nullptr; });
        if (failure_) return;
      }
      Message message;
      std::exception_ptr out_of_memory;
      try {
        message = read(one);
      } catch (const c10::OutOfMemoryError&) {  // receive() throws it, with the action's name
        out_of_memory = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        Slot& slot = slots_.at(slot_of(one.expected.transfer));
        slot.message = std::move(message);
        slot.out_of_memory = out_of_memory;
        slot.full = true;
      }
      changed_.notify_all();
      if (out_of_memory) return;
    }
  } catch (...) {
    cancel(std::current_exception());
  }
}

Message DistributedTransport::read(Posted& posted) {
  const Transfer& transfer = posted.expected.transfer;
  const int from = sender_of(transfer);
  const int tag = tag_of(transfer);
  posted.work.wait();
  const std::string_view bytes = bytes_of(posted.first);
  const FirstPart first = read_first_part(bytes);
  if (first.id != id_of(transfer)) {
    link_->check_pipeline(first.id.serial, from);
    throw StateError(text("rank ", link_->rank(), " expected the ", to_string(id_of(transfer)),
                          " from rank ", from, ", but the ", to_string(first.id), " arrived"),
                     {.rank = link_->rank()});
  }
  std::vector<ValueHeader> values;
  if (first.description_follows) {
    const at::Tensor description =
        at::empty({static_cast<std::int64_t>(first.description_bytes)}, at::kByte);
    link_->receive(description, from, tag).wait();
    values = read_description(bytes_of(description), first.values);
  } else {
    values = read_description(description_in(bytes, first), first.values);
  }
  std::vector<at::Tensor> tensors = tensors_of_first_part(posted.first, first, values);
  std::vector<comm::Work> works;
  Message message;
  for (std::size_t i = 0; i < values.size(); ++i) {
    StageValue& entry = message.emplace_back();
    entry.wants_gradient = values[i].wants_gradient;
    entry.shared = values[i].shared;
    entry.owned = true;
    if (values[i].place == ValueHeader::Place::FirstPart) {
      entry.value = tensors[i].to(posted.expected.consumer);
    } else if (values[i].place == ValueHeader::Place::Follows) {
      entry.value = at::empty_strided(
          values[i].sizes, values[i].strides,
          at::TensorOptions().dtype(values[i].dtype).device(posted.expected.consumer));
      works.push_back(link_->receive(entry.value, from, tag));
    }
  }
  for (auto& work : works) work.wait();
  link_->first_parts().received(from, tag, first.next_first_bytes,
                                works.empty() && !first.description_follows);
  posted.first.reset();
  return message;
}

void DistributedTransport::send(const Transfer& transfer, Message message, at::Device producer) {
  const int to = receiver_of(transfer);
  if (to == link_->rank()) return local_.send(transfer, std::move(message), producer);
  device::synchronize(producer);
  const int tag = tag_of(transfer);
  const PackedMessage packed =
      pack(id_of(transfer), message, link_->first_parts().to_send(to, tag));
  link_->first_parts().sent(to, tag, packed.next_first_bytes);
  for (const auto& entry : message) {
    if (entry.value.defined()) link_->count_sent(static_cast<Bytes>(entry.value.nbytes()));
  }
  message.clear();
  std::vector<comm::Work> works;
  works.push_back(link_->send(packed.first, to, tag));
  if (packed.rest.empty()) {
    const std::lock_guard lock(mutex_);
    ++in_flight_[to];
    sent_.emplace_back(to, std::move(works.front()));
    return;
  }
  for (const auto& tensor : packed.rest) works.push_back(link_->send(tensor, to, tag));
  {
    const std::lock_guard lock(mutex_);
    ++in_flight_[to];
    ++jobs_;
  }
  link_->keep_until_sent(std::move(works), [this, to](const std::exception_ptr& failure) {
    if (failure) fail(failure);
    const std::lock_guard lock(mutex_);
    if (--in_flight_[to] == 0) in_flight_.erase(to);
    --jobs_;
    changed_.notify_all();
  });
}

Message DistributedTransport::receive(const Transfer& transfer, at::Device consumer) {
  if (sender_of(transfer) == link_->rank()) return local_.receive(transfer, consumer);
  if (auto posted = posted_.extract(slot_of(transfer)))
    return receive_here(std::move(posted.mapped()));
  Slot& slot = slots_.at(slot_of(transfer));
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_for(lock, deadline_, [&] { return slot.full || failure_ != nullptr; });
  if (failure_) throw Cancelled{};
  if (!in_time) {
    lock.unlock();
    throw DeadlineError(missed_deadline(transfer), {.rank = link_->rank()});
  }
  if (slot.out_of_memory) std::rethrow_exception(slot.out_of_memory);
  slot.full = false;
  Message message = std::exchange(slot.message, {});
  ++taken_;
  changed_.notify_all();
  return message;
}

// In the rank's own thread.
Message DistributedTransport::receive_here(Posted posted) {
  if (failure()) throw Cancelled{};
  Message message;
  bool in_time = false;
  try {
    in_time = posted.work.wait_for(deadline_);
    if (in_time) message = read(posted);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (...) {
    cancel(std::current_exception());
    throw Cancelled{};
  }
  if (!in_time)
    throw DeadlineError(missed_deadline(posted.expected.transfer), {.rank = link_->rank()});
  const std::lock_guard lock(mutex_);
  ++taken_;
  changed_.notify_all();
  return message;
}

bool DistributedTransport::arrived(const Transfer& transfer) const {
  if (sender_of(transfer) == link_->rank()) return local_.arrived(transfer);
  const std::lock_guard lock(mutex_);
  if (failure_) throw Cancelled{};
  return slots_.at(slot_of(transfer)).full;
}

// After all messages, on every rank, so that the group can run a collective.
void DistributedTransport::give_norms(int rank, std::vector<gradient_norm::StageNorm> own) {
  flush(rank);
  norms_ = gradient_norm::gather_stage_norms(link_->group(), own);
}

void DistributedTransport::flush(int) {
  const auto end = std::chrono::steady_clock::now() + deadline_;
  wait_for_sent(end);
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_until(lock, end, [&] { return in_flight_.empty() || failure_ != nullptr; });
  if (failure_) throw Cancelled{};
  if (in_time) return link_->first_parts().all_sent();
  const std::map<int, std::size_t> left = in_flight_;
  lock.unlock();
  throw DeadlineError(undelivered(left), {.rank = link_->rank()});
}

// Returns early if a message is late: flush() then finds it in flight.
void DistributedTransport::wait_for_sent(std::chrono::steady_clock::time_point end) {
  std::unique_lock lock(mutex_);
  auto sent = std::exchange(sent_, {});
  lock.unlock();
  try {
    for (auto& [to, work] : sent) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      if (!work.wait_for(std::max(left, std::chrono::milliseconds(1)))) break;
      lock.lock();
      if (--in_flight_[to] == 0) in_flight_.erase(to);
      lock.unlock();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void DistributedTransport::finished(int, const schedule::Action& action) {
  link_->group().report_status("last finished " + schedule::to_string(action));
}

void DistributedTransport::fail(std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  changed_.notify_all();
}

void DistributedTransport::cancel(std::exception_ptr failure) {
  const std::string reason = comm::error_message(failure);
  fail(std::move(failure));
  link_->group().fail(reason);
}

std::exception_ptr DistributedTransport::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string DistributedTransport::undelivered(const std::map<int, std::size_t>& left) const {
  std::vector<std::string> parts;
  for (const auto& [rank, count] : left)
    parts.push_back(text("for rank ", rank, " to receive ", counted(count, "message"), ", which ",
                         link_->group().status_of(rank)));
  return text("rank ", link_->rank(), " waited ",
              format_duration(static_cast<double>(deadline_.count()) / 1e3), " ",
              join(parts, "; "));
}

std::string DistributedTransport::missed_deadline(const Transfer& transfer) const {
  const int from = sender_of(transfer);
  return describe_missed_deadline(routes_.at(static_cast<std::size_t>(transfer.route)), transfer,
                                  link_->rank(), from, deadline_, link_->group().status_of(from));
}

}  // namespace trestle::pipeline
