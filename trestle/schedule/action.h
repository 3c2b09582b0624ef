#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// One action of a schedule: a cell of its table.
namespace trestle::schedule {

enum class Kind : std::uint8_t {
  Forward,                 // F
  Backward,                // B: input and weight gradients together
  InputGrad,               // I
  WeightGrad,              // W
  Recompute,               // R: recompute the forward, with its graph
  OverlapForwardBackward,  // a forward and a backward that may overlap (partner_* names the
                           // backward)
  SendActivation,          // SEND_F: the main lane, to stage + 1
  RecvActivation,          // RECV_F: the main lane, from stage - 1
  SendGradient,            // SEND_B: the main lane's gradient, to stage - 1
  RecvGradient,            // RECV_B: the main lane's gradient, from stage + 1
  SendSkip,                // SEND_SKIP: one skip route, producer to consumer
  RecvSkip,                // RECV_SKIP
  SendSkipGradient,        // SEND_SKIP_B: its gradient, consumer to producer
  RecvSkipGradient,        // RECV_SKIP_B
  Unshard,                 // UNSHARD
  Reshard,                 // RESHARD
  ReduceGrad,              // REDUCE_GRAD
  Norm,                    // NORM: the global gradient norm
  Step,                    // STEP: the optimizer step
};

// `stage` is the acting stage: for a RECV the receiver, for a SEND the sender.
struct Action {
  Kind kind = Kind::Forward;
  std::uint8_t threads = 0;  // intra-op threads on CPU cores; 0 = the worker's default
  std::int16_t stage = 0;
  std::int32_t micro_batch = -1;          // -1 for actions that belong to no micro-batch
  std::int16_t route = -1;                // index into Schedule::routes; -1 for kinds without
  std::int16_t partner_stage = -1;        // of an overlapped pair's backward
  std::int32_t partner_micro_batch = -1;  // the same

  friend bool operator==(const Action&, const Action&) = default;
};
static_assert(sizeof(Action) <= 16);

inline Action forward(int stage, int micro_batch) {
  return {
      .kind = Kind::Forward, .stage = static_cast<std::int16_t>(stage), .micro_batch = micro_batch};
}
inline Action backward(int stage, int micro_batch) {
  return {.kind = Kind::Backward,
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = micro_batch};
}
inline Action input_grad(int stage, int micro_batch) {
  return {.kind = Kind::InputGrad,
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = micro_batch};
}
inline Action weight_grad(int stage, int micro_batch) {
  return {.kind = Kind::WeightGrad,
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = micro_batch};
}

// F, B, I, W, R, and the overlapped pair.
inline bool is_compute(Kind kind) { return kind <= Kind::OverlapForwardBackward; }

// Any of the four sends.
inline bool is_send(Kind kind) {
  return kind == Kind::SendActivation || kind == Kind::SendGradient || kind == Kind::SendSkip ||
         kind == Kind::SendSkipGradient;
}

// Any of the four receives.
inline bool is_receive(Kind kind) {
  return kind == Kind::RecvActivation || kind == Kind::RecvGradient || kind == Kind::RecvSkip ||
         kind == Kind::RecvSkipGradient;
}

// Uses PyTorch's spelling for its actions ("2F0", "1I3", "0W3", "2UNSHARD", "2SEND_F0"). Other
// actions are "1R3", "0SEND_SKIP2:r1" (stage 0 sends micro-batch 2 on route 1), "1NORM", "1STEP"
// and "(0F3;1B2)OVERLAP_F_B". A thread count other than 0 is a suffix: "2F0@2".
std::string to_string(const Action& action);

// The inverse. Throws FormatError with the text and the expected form.
Action parse_action(std::string_view text);

}  // namespace trestle::schedule
