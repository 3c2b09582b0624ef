#include "trestle/view/time_axis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trestle/base/text.h"

namespace trestle::view {
namespace {

using schedule::Event;
using schedule::Timeline;

bool whole(double x) { return std::abs(x - std::round(x)) < 1e-6; }

bool looks_like_slots(const Timeline& timeline) {
  constexpr double grain = 0.05;
  const double origin = span(timeline).begin;
  return std::all_of(timeline.events.begin(), timeline.events.end(), [&](const Event& event) {
    const double length = event.end - event.begin;
    return whole((event.begin - origin) / grain) && whole(length / grain);
  });
}

// The smallest 1, 2 or 5 x 10^k that is at least x.
double round_up(double x) {
  const double power = std::pow(10, std::floor(std::log10(x)));
  for (double step : {1.0, 2.0, 5.0, 10.0}) {
    if (step * power >= x * (1 - 1e-9)) return step * power;
  }
  return 10 * power;
}

// The label of a tick. Numbers below a thousandth have an exponent: "2e-06" is narrower than its
// zeros. `largest` is the axis's largest absolute value.
std::string tick_label(double at, double step, double largest) {
  constexpr double with_exponent = 1e-3;
  const int exponent = static_cast<int>(std::floor(std::log10(step) + 1e-9));
  if (at == 0 || largest >= with_exponent || std::abs(at) < step / 2)
    return decimal(at, largest >= with_exponent ? std::clamp(-exponent, 0, 12) : 0);
  const int digits = static_cast<int>(std::floor(std::log10(std::abs(at)) + 1e-9)) - exponent;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.*e", std::clamp(digits, 0, 15), at);
  return buffer;
}

double unit_scale(const std::string& unit) {
  if (unit == "ms") return 1e3;
  if (unit == "us") return 1e6;
  return 1;
}

}  // namespace

TimeUnit resolve(TimeUnit unit, const std::vector<Timeline>& timelines) {
  if (unit != TimeUnit::Auto) return unit;
  const bool slots = std::all_of(timelines.begin(), timelines.end(), looks_like_slots);
  return slots ? TimeUnit::Slots : TimeUnit::Seconds;
}

double slot_length(const Timeline& timeline) {
  const double origin = span(timeline).begin;
  std::vector<double> times;
  double shortest = std::numeric_limits<double>::infinity();
  for (const Event& event : timeline.events) {
    if (!schedule::is_compute(event.action.kind) || event.end <= event.begin) continue;
    shortest = std::min(shortest, event.end - event.begin);
    times.push_back(event.begin - origin);
    times.push_back(event.end - origin);
  }
  for (int parts = 1; parts <= 8 && !times.empty(); ++parts) {
    const double slot = shortest / parts;
    if (std::all_of(times.begin(), times.end(), [&](double t) { return whole(t / slot); })) {
      return slot;
    }
  }
  return 0;
}

Span span(const Timeline& timeline) {
  if (timeline.events.empty()) return {};
  Span result{.begin = std::numeric_limits<double>::infinity(),
              .end = -std::numeric_limits<double>::infinity()};
  for (const Event& event : timeline.events) {
    result.begin = std::min(result.begin, event.begin);
    result.end = std::max(result.end, event.end);
  }
  return result;
}

std::vector<Tick> round_ticks(double low, double high, int most, double least_step) {
  most = std::max(most, 2);
  if (!(high > low) || !std::isfinite(low) || !std::isfinite(high)) {
    return {{.at = low, .label = decimal(low, 3, Zeros::Drop)}};
  }
  const double step = std::max(round_up((high - low) / (most - 1)), least_step);
  const double largest = std::max(std::abs(low), std::abs(high));
  std::vector<Tick> result;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) {
    result.push_back({.at = k * step, .label = tick_label(k * step, step, largest)});
  }
  return result;
}

Range widen_to_ticks(const Range& range, int most) {
  const std::vector<Tick> ticks = round_ticks(range.low, range.high, most);
  if (ticks.size() < 2) return range;
  const double step = ticks[1].at - ticks[0].at;
  return {.low = std::floor(range.low / step + 1e-9) * step,
          .high = std::ceil(range.high / step - 1e-9) * step};
}

std::vector<Tick> ticks(double length, TimeUnit unit, int most) {
  if (!(length > 0)) return {{.at = 0, .label = "0"}};
  if (unit == TimeUnit::Slots) most = std::min(most, std::max(static_cast<int>(length), 1) + 1);
  const double scale = unit_scale(axis_unit(length, unit));
  std::vector<Tick> result = round_ticks(0, length * scale, most);
  for (Tick& tick : result) tick.at /= scale;
  return result;
}

std::string axis_unit(double length, TimeUnit unit) {
  if (unit == TimeUnit::Slots) return "slots";
  if (length >= 10) return "s";
  return length >= 1e-3 ? "ms" : "us";
}

std::string duration_text(double length, TimeUnit unit) {
  if (unit != TimeUnit::Slots) return format_duration(length);
  return text(decimal(length, 2, Zeros::Drop), length == 1 ? " slot" : " slots");
}

std::string decimal(double x, int decimals, Zeros zeros) {
  char buffer[32];
  if (std::isfinite(x) && std::abs(x) >= 1e9) {  // such numbers do not fit a label
    std::snprintf(buffer, sizeof buffer, "%.4g", x);
    return buffer;
  }
  std::snprintf(buffer, sizeof buffer, "%.*f", std::clamp(decimals, 0, 17), x);
  std::string result = buffer;
  if (zeros == Zeros::Drop && result.find('.') != std::string::npos) {
    result.erase(result.find_last_not_of('0') + 1);
    if (result.back() == '.') result.pop_back();
  }
  const bool is_zero = result.find_first_of("123456789") == std::string::npos && std::isfinite(x);
  if (is_zero && result.front() == '-') result.erase(0, 1);
  return result;
}

}  // namespace trestle::view
