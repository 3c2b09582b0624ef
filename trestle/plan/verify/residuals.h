#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/verify/verify_plans.h"

// The differences between predicted and measured steps on one machine, and the range that they give
// to later predictions.
namespace trestle::plan {

// One plan that was predicted and measured.
struct Residual {
  std::string model = {};     // "unet"
  std::string strategy = {};  // in words
  std::string machine = {};   // its processor and cores: "AMD EPYC, 2 cores"
  std::string version = {};   // of trestle and libtorch
  double predicted_seconds = 0;
  double measured_seconds = 0;
  double spread = 0;  // of the runs: (slowest - fastest) / median

  double error() const;  // |predicted / measured - 1|
};

// One for each plan that was measured.
std::vector<Residual> residuals_of(const Verification& verification, const Residual& here);

// The file: one JSON object a line, {"model": "unet", "strategy": "tensor 2 ...", ...}.
std::string to_json_lines(const std::vector<Residual>& residuals);
// Throws UsageError, with the number of the line, for lines that to_json_lines() cannot have
// written. A last line without its end, as after a crash, is one.
std::vector<Residual> parse_residuals(std::string_view lines, const std::string& file);

// Throws UsageError, with both names, for residuals of another machine or of another version.
void check_residuals(const std::vector<Residual>& residuals, const Residual& here,
                     const std::string& file);

// The least share by which a prediction may differ such that nine of ten further steps lie in its
// range, as far as they are like the known ones: the ceil(0.9 (n + 1))-th smallest error (split
// conformal prediction; Lei et al., Distribution-Free Predictive Inference for Regression, 2018).
// Fewer than nine residuals have no such bound; it is then the largest error, and its origin is
// Assumed. `from` says how many steps it is from, and how many of them lie in the range that all
// other ones give. Throws UsageError without residuals.
Figure spread_of(const std::vector<Residual>& residuals);

// How many residuals lie within the spread of all other ones.
int within_spread_of_others(const std::vector<Residual>& residuals);

}  // namespace trestle::plan
