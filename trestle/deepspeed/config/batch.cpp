#include "trestle/base/text.h"
#include "trestle/deepspeed/config/sections.h"

namespace trestle::deepspeed {

namespace {

constexpr auto train_key = "train_batch_size", micro_key = "train_micro_batch_size_per_gpu",
               accumulate_key = "gradient_accumulation_steps";

std::string ranks_text(std::int64_t ranks) { return text(ranks, ranks == 1 ? " rank" : " ranks"); }

// Reports "train_batch_size 64 is not ... = 32. Change one of them, or leave one out."
void check_product(const Batch& given, Reading reading) {
  const std::int64_t ranks = reading.config.ranks;
  const std::int64_t product = *given.micro * *given.accumulate * ranks;
  if (*given.train != product)
    reading.problems.add(text(train_key, " ", *given.train, " is not ", micro_key, " ",
                              *given.micro, " x ", accumulate_key, " ", *given.accumulate, " x ",
                              ranks_text(ranks), " = ", product,
                              ". Change one of them, or leave one out."));
}

// train / (given * ranks); reports a remainder.
std::int64_t divide(std::int64_t train, const char* given_key, std::int64_t given,
                    const char* missing_key, Reading reading) {
  const std::int64_t ranks = reading.config.ranks, part = given * ranks;
  if (train % part == 0) return train / part;
  const std::string parts =
      given_key == nullptr ? ranks_text(ranks)
                           : text(given_key, " ", given, " x ", ranks_text(ranks), " = ", part);
  reading.problems.add(text(train_key, " ", train, " is not a multiple of ", parts, ", so ",
                            missing_key, " cannot be computed. Change one of them."));
  return 1;
}

}  // namespace

void derive_batch(const Batch& given, Reading reading) {
  const auto& [train, micro, accumulate] = given;
  DeepspeedConfig& config = reading.config;
  if (train && micro && accumulate) check_product(given, reading);
  if (!train && !micro) {
    reading.problems.add(
        text("neither ", train_key, " nor ", micro_key, " is given. Give one of them."));
    return;
  }
  config.accumulate = accumulate       ? *accumulate
                      : train && micro ? divide(*train, micro_key, *micro, accumulate_key, reading)
                                       : 1;
  config.micro_batch = micro ? *micro
                             : divide(*train, accumulate ? accumulate_key : nullptr,
                                      config.accumulate, micro_key, reading);
  config.train_batch = config.micro_batch * config.accumulate * config.ranks;
}

}  // namespace trestle::deepspeed
