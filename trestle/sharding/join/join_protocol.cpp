#include "trestle/sharding/join/join_protocol.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"

namespace trestle::sharding {
namespace {

constexpr std::size_t header_fields = 4;
constexpr std::size_t gradients_in_field = 16;  // two bits each
using Step = JoinProtocol::Step;
using Message = JoinProtocol::Message;

std::string describe_message(const Message& message) {
  std::string words = "has ended";
  if (message.step == Step::Forward) words = "begins a forward without gradients";
  if (message.step == Step::TrainingForward) words = "begins a forward";
  if (message.step == Step::Backward) words = "begins a backward";
  if (message.step == Step::UnreducedBackward) words = "begins a backward inside no_sync()";
  if (message.weighted) words += " with a weight";
  return message.model > 0 ? text(words, " of model ", message.model) : words;
}

bool same_operation(const Message& a, const Message& b) {
  return a.step == b.step && a.model == b.model && a.weighted == b.weighted;
}

}  // namespace

std::vector<std::int64_t> JoinProtocol::encode(const Message& message) const {
  std::vector<std::int64_t> values(header_fields +
                                   (gradients_ + gradients_in_field - 1) / gradients_in_field);
  values[0] = plan_;
  values[1] = static_cast<std::int64_t>(message.step);
  values[2] = message.model;
  values[3] = message.weighted ? 1 : 0;
  for (std::size_t i = 0; i < message.earlier.size(); ++i)
    values[header_fields + i / gradients_in_field] |= static_cast<std::int64_t>(message.earlier[i])
                                                      << (2 * (i % gradients_in_field));
  return values;
}

Message JoinProtocol::decode(const std::int64_t* values) const {
  Message message{.step = static_cast<Step>(values[1]),
                  .model = static_cast<int>(values[2]),
                  .weighted = values[3] != 0};
  for (std::size_t i = 0; i < gradients_; ++i) {
    const std::int64_t bits =
        values[header_fields + i / gradients_in_field] >> (2 * (i % gradients_in_field));
    message.earlier.push_back(static_cast<Earlier>(bits & 3));
  }
  return message;
}

void JoinProtocol::check_same_plan(const std::int64_t* received, std::size_t fields) const {
  for (int rank = 0; rank < group_.size(); ++rank)
    if (received[fields * static_cast<std::size_t>(rank)] != received[0])
      throw StateError(text("ranks ", world_rank(0), " and ", world_rank(rank),
                            " call join() with different models or options"),
                       {.hint = "All ranks must call join() with the same models and options."});
}

void JoinProtocol::throw_for_first_end(int ended, int active, const Message& message) {
  threw_for_first_end_ = true;
  throw StateError(text("rank ", world_rank(ended), " has no batches left, and rank ",
                        world_rank(active), " ", describe_message(message)),
                   {.hint = "With JoinOptions::first_end = FirstEnd::Shadow it shadows the active "
                            "ranks instead."});
}

Message JoinProtocol::exchange(const Message& own) {
  const auto values = encode(own);
  const std::size_t fields = values.size();
  const at::Tensor sent = at::empty({static_cast<std::int64_t>(fields)}, at::kLong);
  std::copy(values.begin(), values.end(), sent.mutable_data_ptr<std::int64_t>());
  const at::Tensor all = at::empty({group_.size() * sent.numel()}, at::kLong);
  comm::with_purpose([] { return "while the ranks told each other their next call, under join()"; },
                     [&] { group_.all_gather(all, sent).wait(); });
  const auto* const received = all.const_data_ptr<std::int64_t>();
  check_same_plan(received, fields);
  int active = -1, ended = -1;
  Message common;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Message message = decode(received + fields * static_cast<std::size_t>(rank));
    if (message.step == Step::Ended) {
      ended = rank;
      continue;
    }
    if (active < 0) {
      active = rank;
      common = message;
    }
    for (std::size_t i = 0; i < gradients_; ++i)
      common.earlier[i] = std::min(common.earlier[i], message.earlier[i]);
    if (same_operation(message, common)) continue;
    throw StateError(text("rank ", world_rank(active), " ", describe_message(common), ", rank ",
                          world_rank(rank), " ", describe_message(message)),
                     {.hint = "Inside join() all active ranks must make the same calls."});
  }
  if (active < 0) return common;
  first_active_rank_ = active;
  if (ended >= 0 && options_.first_end == JoinOptions::FirstEnd::Throw)
    throw_for_first_end(ended, active, common);
  return common;
}

}  // namespace trestle::sharding
