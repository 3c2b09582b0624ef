#include "trestle/precision/gradient_scaler.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::precision {

namespace {

template <class Error>
void check(const GradientScalerOptions& o) {
  const auto require = [](bool holds, const char* what, double value, const char* range) {
    if (!holds) throw Error(text("gradient scaler: ", what, " = ", value, " is not ", range));
  };
  require(o.initial_scale > 0 && std::isfinite(static_cast<float>(o.initial_scale)), "scale",
          o.initial_scale, "a number above 0");
  require(o.growth_factor > 1 && std::isfinite(o.growth_factor), "growth_factor", o.growth_factor,
          "above 1");
  require(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor", o.backoff_factor,
          "in (0, 1)");
  require(o.growth_interval >= 1, "growth_interval", static_cast<double>(o.growth_interval),
          "at least 1");
  require(o.hysteresis >= 1, "hysteresis", static_cast<double>(o.hysteresis), "at least 1");
  require(o.lowest_scale >= 0 &&
              static_cast<float>(o.lowest_scale) <= static_cast<float>(o.initial_scale),
          "lowest_scale", o.lowest_scale, "between 0 and the scale");
}

// Whether all options that Python's scaler lacks have their defaults.
bool is_pythons(const GradientScalerOptions& o) {
  return o.dynamic && o.hysteresis == 1 && !o.consecutive_hysteresis && o.lowest_scale == 0 &&
         !o.fail_at_lowest;
}

// Multiplies in place. Returns true if all values were finite.
bool unscale_one(at::Tensor values, double inverse) {
  const bool finite = values.numel() == 0 || at::isfinite(values).all().item<bool>();
  if (inverse != 1) values.mul_(inverse);
  return finite;
}

}  // namespace

GradientScaler::GradientScaler(const GradientScalerOptions& options)
    : options_(options),
      scale_(static_cast<float>(options.initial_scale)),
      overflows_left_(options.hysteresis - 1) {
  check<UsageError>(options_);
}

at::Tensor GradientScaler::scale(const at::Tensor& loss) const {
  return loss.to(loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat) * scale_;
}

bool GradientScaler::unscale(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    if (gradient.scalar_type() == at::kHalf)
      throw UsageError("a gradient in fp16 cannot be unscaled",
                       {.hint = "Keep the parameters in fp32 and let autocast do the casting."});
    if (unscaled_.contains(parameters[i].unsafeGetTensorImpl()))
      throw StateError(text("the gradient of parameter ", i, ", [", join(gradient.sizes(), ", "),
                            "], was already unscaled since the last update()"),
                       {.hint = "Call unscale() once for each parameter, then update()."});
  }
  // As in Python: the reciprocal in double, then rounded.
  const double inverse = static_cast<float>(1.0 / static_cast<double>(scale_));
  for (const at::Tensor& parameter : parameters) {
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined() || !unscaled_.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (gradient.is_sparse()) {
      gradient = gradient.coalesce();
      parameter.mutable_grad() = gradient;
      gradient = gradient._values();
    }
    if (!unscale_one(gradient, inverse)) overflowed_ = true;
  }
  checked_ = true;
  return !overflowed_;
}

void GradientScaler::update() {
  if (!checked_)
    throw StateError("the gradient scaler has unscaled no gradients since its last update()",
                     {.hint = "Call unscale() first."});
  const bool overflowed = overflowed_;
  checked_ = overflowed_ = false;
  unscaled_.clear();
  overflowed ? shrink() : grow();
}

void GradientScaler::shrink() {
  good_steps_ = 0;
  if (!options_.dynamic) return;
  if (overflows_left_ > 0) {
    --overflows_left_;
    return;
  }
  if (options_.fail_at_lowest && scale_ <= static_cast<float>(options_.lowest_scale))
    throw StateError(text("gradients overflow at the lowest loss scale, ", scale_),
                     {.hint = "Lower the learning rate, look for the layer that overflows, or use "
                              "bf16, which needs no scale."});
  scale_ = std::max(static_cast<float>(scale_ * options_.backoff_factor),
                    static_cast<float>(options_.lowest_scale));
}

void GradientScaler::grow() {
  if (options_.consecutive_hysteresis) overflows_left_ = options_.hysteresis - 1;
  if (++good_steps_ < options_.growth_interval) return;
  good_steps_ = 0;
  overflows_left_ = options_.hysteresis - 1;
  const auto grown = static_cast<float>(scale_ * options_.growth_factor);
  if (options_.dynamic && std::isfinite(grown)) scale_ = grown;
}

std::map<std::string, double> GradientScaler::state() const {
  std::map<std::string, double> state = {
      {"scale", scale_},
      {"growth_factor", options_.growth_factor},
      {"backoff_factor", options_.backoff_factor},
      {"growth_interval", static_cast<double>(options_.growth_interval)},
      {"_growth_tracker", static_cast<double>(good_steps_)}};
  if (is_pythons(options_)) return state;
  state["dynamic"] = options_.dynamic ? 1 : 0;
  state["hysteresis"] = static_cast<double>(options_.hysteresis);
  state["consecutive_hysteresis"] = options_.consecutive_hysteresis ? 1 : 0;
  state["lowest_scale"] = options_.lowest_scale;
  state["fail_at_lowest"] = options_.fail_at_lowest ? 1 : 0;
  state["_hysteresis_tracker"] = static_cast<double>(overflows_left_);
  return state;
}

void GradientScaler::load_state(const std::map<std::string, double>& state) {
  const auto number = [&](const char* name) {
    const auto found = state.find(name);
    if (found == state.end())
      throw FormatError(text("the state of a gradient scaler lacks '", name, "'"));
    return found->second;
  };
  const auto count = [&](const char* name) {
    const double value = number(name);
    if (!(value >= 0 && value < 1e15))
      throw FormatError(text("gradient scaler: ", name, " = ", value, " is not a count"));
    return static_cast<std::int64_t>(value);
  };
  GradientScalerOptions options = {.initial_scale = number("scale"),
                                   .growth_factor = number("growth_factor"),
                                   .backoff_factor = number("backoff_factor"),
                                   .growth_interval = count("growth_interval")};
  const auto own = [&](const char* name, double value) {
    return state.contains(name) ? number(name) : value;
  };
  options.dynamic = own("dynamic", options_.dynamic ? 1 : 0) != 0;
  options.consecutive_hysteresis =
      own("consecutive_hysteresis", options_.consecutive_hysteresis ? 1 : 0) != 0;
  options.fail_at_lowest = own("fail_at_lowest", options_.fail_at_lowest ? 1 : 0) != 0;
  options.lowest_scale = own("lowest_scale", options_.lowest_scale);
  options.hysteresis = state.contains("hysteresis") ? count("hysteresis") : options_.hysteresis;
  check<FormatError>(options);
  const std::int64_t left =
      state.contains("_hysteresis_tracker") ? count("_hysteresis_tracker") : options.hysteresis - 1;
  if (left >= options.hysteresis)
    throw FormatError(text("gradient scaler: _hysteresis_tracker = ", left, " is not below ",
                           "hysteresis = ", options.hysteresis));
  overflows_left_ = left;
  good_steps_ = count("_growth_tracker");
  scale_ = static_cast<float>(options.initial_scale);
  options_ = options;
  checked_ = overflowed_ = false;
  unscaled_.clear();
}

}  // namespace trestle::precision
