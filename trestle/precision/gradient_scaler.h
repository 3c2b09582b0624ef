#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

// Keeps the gradients of fp16 in its range: the loss is multiplied by a scale, the gradients are
// divided by it before the optimizer's step, a step whose gradients overflowed is left out, and the
// scale follows (Micikevicius et al. 2017, "Mixed precision training"). Numbers and state are those
// of Python's torch.amp.GradScaler.
//
//   precision::GradientScaler scaler;
//   for (auto& [image, mask] : loader) {
//     pipeline.zero_grad();
//     pipeline.step(image, mask, loss, {.gradient_scale = scaler.scale()});
//     if (scaler.unscale(pipeline.parameters())) {     // may be clipped now
//       pipeline.clip_grad_norm(1.0);
//       optimizer.step();
//     }
//     scaler.update();
//   }
//
// With a backward of one's own: scaler.scale(loss).backward().
namespace trestle::precision {

struct GradientScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // good steps in a row before the scale grows

  // What Python's does not have, and DeepSpeed's does:
  bool dynamic = true;  // otherwise the scale stays as it is; steps that overflow are left out
  // The overflow that makes the scale smaller, counted since the scale last grew, and so does each one
  // after it; those before it only leave their steps out. "Consecutive" counts since the last good step.
  std::int64_t hysteresis = 1;
  bool consecutive_hysteresis = false;
  double lowest_scale = 0;      // below which the scale does not go
  bool fail_at_lowest = false;  // update() throws StateError for an overflow there
};

class GradientScaler {
 public:
  // Throws UsageError for a scale that is not above 0, a growth not above 1, a backoff not in (0, 1),
  // an interval below 1.
  explicit GradientScaler(const GradientScalerOptions& options = {});

  double scale() const { return scale_; }
  at::Tensor scale(const at::Tensor& loss) const;  // in fp32: fp16 ends at 65504

  // Divides the gradients by the scale, in place, on their devices; parameters without one are passed
  // over, and one that stands there twice is divided once. True if all are finite, those of earlier
  // calls since the last update() too: then the optimizer may step. Throws StateError for a parameter
  // of an earlier call since then, whose gradient would be divided again, and UsageError for gradients
  // in fp16: parameters stay in fp32. No gradient is changed then.
  bool unscale(const std::vector<at::Tensor>& parameters);

  // Some other part of the model's gradients overflowed, on another rank: the step is left out here too,
  // and the scale becomes smaller with update().
  void note_overflow() { overflowed_ = true; }

  // To be called after each step, made or left out. Throws StateError without an unscale() before, and
  // by fail_at_lowest.
  void update();

  // By the names of Python's state_dict(): scale, growth_factor, backoff_factor, growth_interval,
  // _growth_tracker; and, where one of them is not Python's, the other options by their names, and
  // _hysteresis_tracker, which count on from what they are where a state lacks them. load_state()
  // throws FormatError where one of Python's is missing, and where one is out of range.
  std::map<std::string, double> state() const;
  void load_state(const std::map<std::string, double>& state);

 private:
  void shrink();
  void grow();

  GradientScalerOptions options_;
  float scale_;
  std::int64_t overflows_left_;  // before the one that shrinks the scale
  std::int64_t good_steps_ = 0;  // since the scale changed
  bool checked_ = false, overflowed_ = false;
  std::unordered_set<const void*> unscaled_;  // parameters since the last update(), to compare only
};

}  // namespace trestle::precision
