#pragma once

#include <cstdint>

// Lowers the learning rate when a metric stops improving, as Python's ReduceLROnPlateau does. Its
// state is plain numbers, so that a run can be resumed.
//
//   ReduceOnPlateau plateau({.patience = 2});
//   if (plateau.step(validation_dice))
//     set_learning_rate(optimizer, rate = plateau.reduced(rate));
//
// (The reference U-Net program creates such a scheduler and never steps it, so parity with it means
// not to use one.)
namespace trestle::optim {

struct PlateauOptions {
  enum class Mode { Max, Min };
  // The metric must improve by best * threshold, or by threshold itself.
  enum class Threshold { Relative, Absolute };

  Mode mode = Mode::Max;  // whether a higher or a lower metric is better
  double factor = 0.1;    // multiplies the learning rate
  int patience = 2;       // the number of steps without improvement that are tolerated
  double threshold = 1e-4;
  Threshold threshold_mode = Threshold::Relative;
  int cooldown = 0;               // steps after a reduction during which bad steps do not count
  double lowest = 0;              // the minimum learning rate
  double smallest_change = 1e-8;  // smaller reductions are not applied
};

class ReduceOnPlateau {
 public:
  struct State {
    double best = 0;
    bool has_best = false;
    int bad_steps = 0;
    int cooling = 0;
  };

  // Throws UsageError for a factor outside of (0, 1), and for a negative count, threshold or
  // minimum.
  explicit ReduceOnPlateau(const PlateauOptions& options = {});

  // Records the metric of an epoch. Returns true if the learning rate should be reduced now. NaN
  // and the worst infinity count as no improvement, in the first epoch too.
  bool step(double metric);
  // The reduced learning rate; the same one at the minimum.
  double reduced(double rate) const;

  const State& state() const { return state_; }
  void load(const State& state) { state_ = state; }

 private:
  bool is_better(double metric) const;

  PlateauOptions options_;
  State state_;
};

}  // namespace trestle::optim
