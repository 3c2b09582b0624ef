#include "trestle/sharding/join_protocol.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

constexpr std::size_t head = 4;     // numbers before those of the gradients
constexpr std::size_t in_one = 16;  // gradients in a number, in two bits each
using Step = JoinProtocol::Step;
using Word = JoinProtocol::Word;

std::string words_of(const Word& word) {
  std::string words = "has ended";
  if (word.step == Step::Forward) words = "begins a forward without gradients";
  if (word.step == Step::TrainingForward) words = "begins a forward";
  if (word.step == Step::Backward) words = "begins a backward";
  if (word.step == Step::UnreducedBackward) words = "begins a backward inside no_sync()";
  if (word.weighted) words += " with a weight";
  return word.model > 0 ? text(words, " of model ", word.model) : words;
}

Word word_of(const std::int64_t* values, std::size_t gradients) {
  Word word{.step = static_cast<Step>(values[1]),
            .model = static_cast<int>(values[2]),
            .weighted = values[3] != 0};
  for (std::size_t i = 0; i < gradients; ++i) {
    const std::int64_t rest = values[head + i / in_one] >> (2 * (i % in_one));
    word.earlier.push_back(static_cast<JoinProtocol::Earlier>(rest & 3));
  }
  return word;
}

}  // namespace

Word JoinProtocol::say(const Word& own) {
  const auto fields = static_cast<std::int64_t>(head + (gradients_ + in_one - 1) / in_one);
  const at::Tensor sent = at::zeros({fields}, at::kLong);
  auto* values = sent.mutable_data_ptr<std::int64_t>();
  values[0] = plan_;
  values[1] = static_cast<std::int64_t>(own.step);
  values[2] = own.model;
  values[3] = own.weighted ? 1 : 0;
  for (std::size_t i = 0; i < own.earlier.size(); ++i)
    values[head + i / in_one] |= static_cast<std::int64_t>(own.earlier[i]) << (2 * (i % in_one));
  const at::Tensor all = at::empty({group_.size() * fields}, at::kLong);
  group_.all_gather(all, sent).wait();
  const auto* heard = all.const_data_ptr<std::int64_t>();
  const auto number = [&](int rank) { return group_.ranks().at(static_cast<std::size_t>(rank)); };
  int first = -1, ended = -1;
  Word said;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Word word = word_of(heard + fields * rank, gradients_);
    if (heard[fields * rank] != heard[0])
      throw StateError(
          text("ranks 0 and ", number(rank), " are in join() with other models or options"),
          {.hint = "All ranks call join() with the same models and options."});
    if (word.step == Step::Ended) {
      ended = rank;
      continue;
    }
    if (first < 0) {
      first = rank;
      said = word;
    }
    for (std::size_t i = 0; i < gradients_; ++i)
      said.earlier[i] = std::min(said.earlier[i], word.earlier[i]);
    if (word.step == said.step && word.model == said.model && word.weighted == said.weighted)
      continue;
    throw StateError(text("rank ", number(first), " ", words_of(said), ", rank ", number(rank), " ",
                          words_of(word)),
                     {.hint = "Inside join() all ranks that have batches make the same calls."});
  }
  if (first >= 0) first_rank_ = first;
  if (first >= 0 && ended >= 0 && options_.first_end == JoinOptions::FirstEnd::Throw) {
    threw_for_first_end_ = true;
    throw StateError(
        text("rank ", number(ended), " has no batches left, and rank ", number(first), " ",
             words_of(said)),
        {.hint = "JoinOptions::first_end = FirstEnd::Follow lets it follow the others."});
  }
  return said;
}

}  // namespace trestle::sharding
