#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"

// Times in pictures: slots for assumed unit costs, seconds for measured ones.
namespace trestle::view {

// Auto selects Slots when every time is a multiple of 0.05, as assumed costs are, otherwise
// Seconds.
enum class TimeUnit { Auto, Slots, Seconds };

// Resolves Auto for timelines that share an axis: Slots only if every timeline looks like slots.
TimeUnit resolve(TimeUnit unit, const std::vector<schedule::Timeline>& timelines);

// The greatest common divisor of all begins and ends of compute actions. Returns 0 if the shortest
// action would span more than 8 of them, because such slots are not worth drawing.
double slot_length(const schedule::Timeline& timeline);

// The first begin and the last end of all events; 0 and 0 without events.
struct Span {
  double begin = 0;
  double end = 0;
  double length() const { return end - begin; }
};
Span span(const schedule::Timeline& timeline);

struct Tick {
  double at = 0;  // in seconds (or slots)
  std::string label;
};

// Round numbers (1, 2, 5 x 10^k) from 0 to `length`, at most `most` of them (>= 2). The labels have
// no unit.
std::vector<Tick> ticks(double length, TimeUnit unit, int most);

// The unit at the end of the axis: "slots", "s", "ms" or "us".
std::string axis_unit(double length, TimeUnit unit);

// A duration with its unit: "33 slots", "310 ms".
std::string duration_text(double length, TimeUnit unit);

// x with `decimals` decimals, with trailing zeros ("27.30") or without ("27.3"); "1.234e+09" from
// 1e9 on.
enum class Zeros { Keep, Drop };
std::string decimal(double x, int decimals, Zeros zeros = Zeros::Keep);

// Round positions (1, 2, 5 x 10^k) between two values for a chart's axis, at most `most` of them
// (>= 2), at least `least_step` apart. On an axis of values below a thousandth the labels have an
// exponent.
std::vector<Tick> round_ticks(double low, double high, int most, double least_step = 0);

// The values of a chart's axis.
struct Range {
  double low = 0;
  double high = 1;
  double share(double value) const { return (value - low) / (high - low); }
};

// Widens the range to the round ticks around it (at most `most` inside), so that the axis begins
// and ends with a tick.
Range widen_to_ticks(const Range& range, int most);

}  // namespace trestle::view
