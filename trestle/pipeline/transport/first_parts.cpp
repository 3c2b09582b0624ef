#include "trestle/pipeline/transport/first_parts.h"

#include <ATen/Functions.h>

#include "trestle/pipeline/transport/message_header.h"

namespace trestle::pipeline {
namespace {

at::Tensor buffer_of(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

}  // namespace

at::Tensor FirstParts::to_send(int to, int tag) {
  const std::lock_guard lock(mutex_);
  Sending& own = sending_.try_emplace({to, tag}, Sending{first_part_bytes}).first->second;
  const bool fits = own.buffer.defined() && own.buffer.nbytes() == own.bytes;
  if (own.in_use || !fits) own.buffer = buffer_of(own.bytes);
  own.in_use = true;
  return own.buffer;
}

void FirstParts::sent(int to, int tag, std::size_t next_bytes) {
  const std::lock_guard lock(mutex_);
  sending_.at({to, tag}).bytes = next_bytes;
}

void FirstParts::all_sent() {
  const std::lock_guard lock(mutex_);
  for (auto& [place, own] : sending_) own.in_use = false;
}

at::Tensor FirstParts::to_receive(int from, int tag) const {
  const std::lock_guard lock(mutex_);
  const auto known = receiving_.find({from, tag});
  return buffer_of(known == receiving_.end() ? first_part_bytes : known->second.bytes);
}

void FirstParts::received(int from, int tag, std::size_t next_bytes, bool whole) {
  const std::lock_guard lock(mutex_);
  receiving_.insert_or_assign({from, tag}, Receiving{next_bytes, whole});
}

bool FirstParts::comes_whole(int from, int tag) const {
  const std::lock_guard lock(mutex_);
  const auto known = receiving_.find({from, tag});
  return known != receiving_.end() && known->second.whole;
}

}  // namespace trestle::pipeline
