#include "trestle/precision/gradient_scaler.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

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
}

// In place; true if all were finite before.
bool unscale_one(at::Tensor values, double inverse) {
  const bool finite = values.numel() == 0 || at::isfinite(values).all().item<bool>();
  if (inverse != 1) values.mul_(inverse);
  return finite;
}

}  // namespace

GradientScaler::GradientScaler(const GradientScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.initial_scale)) {
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
                            "], was unscaled already, and would be divided by the scale again"),
                       {.hint = "Call unscale() once for each parameter, then update()."});
  }
  // As Python: the reciprocal in double precision, then rounded.
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
    throw StateError("the gradient scaler has seen no gradients since its last update()",
                     {.hint = "Call unscale() first."});
  if (overflowed_) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    good_steps_ = 0;
  }
  checked_ = overflowed_ = false;
  unscaled_.clear();
}

std::map<std::string, double> GradientScaler::state() const {
  return {{"scale", scale_},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"_growth_tracker", static_cast<double>(good_steps_)}};
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
  check<FormatError>(options);
  good_steps_ = count("_growth_tracker");
  scale_ = static_cast<float>(options.initial_scale);
  options_ = options;
  checked_ = overflowed_ = false;
  unscaled_.clear();
}

}  // namespace trestle::precision
