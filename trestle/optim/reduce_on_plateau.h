#pragma once

#include <cstdint>

// Lowers the learning rate when a metric stops getting better, as Python's ReduceLROnPlateau does,
// with its state in plain numbers so that a run can be resumed.
//
//   ReduceOnPlateau plateau({.patience = 2});
//   if (plateau.step(validation_dice))
//     set_learning_rate(optimizer, rate = plateau.reduced(rate));
//
// (The reference U-Net program makes such a scheduler and never steps it; parity means not to use
// it.)
namespace trestle::optim {

struct PlateauOptions {
  enum class Mode { Max, Min };
  // How much better than the best so far is better: by best * threshold, or by threshold itself.
  enum class Threshold { Relative, Absolute };

  Mode mode = Mode::Max;  // whether a higher or a lower metric is better
  double factor = 0.1;    // the learning rate is multiplied by it
  int patience = 2;       // this many steps without improvement are let pass
  double threshold = 1e-4;
  Threshold threshold_mode = Threshold::Relative;
  int cooldown = 0;               // steps after a reduction in which bad ones do not count
  double lowest = 0;              // the learning rate does not go below it
  double smallest_change = 1e-8;  // a reduction by no more than this is not made
};

class ReduceOnPlateau {
 public:
  struct State {
    double best = 0;
    bool has_best = false;
    int bad_steps = 0;
    int cooling = 0;
  };

  // Throws UsageError for a factor that is not in (0, 1), or a negative count, threshold or floor.
  explicit ReduceOnPlateau(const PlateauOptions& options = {});

  // Takes the metric of one more epoch. True when the learning rate should be reduced now. NaN, and
  // the infinity that is the worst there is, count as no improvement, in the first epoch too.
  bool step(double metric);
  // What the learning rate becomes then; the same one where the floor is reached.
  double reduced(double rate) const;

  const State& state() const { return state_; }
  void load(const State& state) { state_ = state; }

 private:
  bool is_better(double metric) const;

  PlateauOptions options_;
  State state_;
};

}  // namespace trestle::optim
