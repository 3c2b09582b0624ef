#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

// Keeps the gradients of fp16 in its range: the loss is multiplied by a scale, the gradients are
// divided by it before the optimizer steps, a step whose gradients overflowed is skipped, and the
// scale adapts (Micikevicius et al. 2017, "Mixed precision training"). Numbers and state are those
// of Python's torch.amp.GradScaler.
//
//   precision::GradientScaler scaler;
//   for (auto& [image, mask] : loader) {
//     pipeline.zero_grad();
//     pipeline.step(image, mask, loss, {.gradient_scale = scaler.scale()});
//     if (scaler.unscale(pipeline.parameters())) {     // clip after unscaling
//       pipeline.clip_grad_norm(1.0);
//       optimizer.step();
//     }
//     scaler.update();
//   }
//
// With a manual backward: scaler.scale(loss).backward().
namespace trestle::precision {

struct GradientScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // consecutive good steps before the scale grows

  // Options of DeepSpeed's scaler that Python's does not have:
  bool dynamic = true;  // false: the scale is fixed; steps that overflow are skipped
  // The scale shrinks at the overflow with this number, counted since the scale last grew, and at
  // each later one. Earlier overflows only skip their steps. With `consecutive_hysteresis` the
  // count restarts after each good step.
  std::int64_t hysteresis = 1;
  bool consecutive_hysteresis = false;
  double lowest_scale = 0;      // the minimum scale
  bool fail_at_lowest = false;  // update() throws StateError for an overflow at the minimum
};

class GradientScaler {
 public:
  // Throws UsageError unless the scale is above 0, the growth factor above 1, the backoff factor in
  // (0, 1), and the interval at least 1.
  explicit GradientScaler(const GradientScalerOptions& options = {});

  double scale() const { return scale_; }
  at::Tensor scale(const at::Tensor& loss) const;  // in fp32, because fp16 ends at 65504

  // Divides the gradients by the scale, in place, on their devices. Parameters without a gradient
  // are skipped, and a parameter that is listed twice is divided once. Returns true if all
  // gradients are finite, including those of earlier calls since the last update(); the optimizer
  // may step then. Throws StateError for a parameter of an earlier call since then, and UsageError
  // for gradients in fp16, because parameters must stay in fp32. No gradient is changed in these
  // cases.
  bool unscale(const std::vector<at::Tensor>& parameters);

  // Records that gradients overflowed on another rank. The step is then skipped here too, and
  // update() shrinks the scale.
  void note_overflow() { overflowed_ = true; }

  // Call it after each step, also after a skipped one. Throws StateError without an unscale()
  // before, and as `fail_at_lowest` describes.
  void update();

  // By the names of Python's state_dict(): scale, growth_factor, backoff_factor, growth_interval,
  // _growth_tracker. If an option differs from Python's behaviour, the state also has the other
  // options by their names, and _hysteresis_tracker; those that a state lacks keep their current
  // values when it is loaded. load_state() throws FormatError for a missing entry of Python's, and
  // for a value out of range.
  std::map<std::string, double> state() const;
  void load_state(const std::map<std::string, double>& state);

 private:
  void shrink();
  void grow();

  GradientScalerOptions options_;
  float scale_;
  std::int64_t overflows_left_;  // until the one that shrinks the scale
  std::int64_t good_steps_ = 0;  // since the scale changed
  bool checked_ = false, overflowed_ = false;
  std::unordered_set<const void*> unscaled_;  // parameters since the last update(), to compare only
};

}  // namespace trestle::precision
