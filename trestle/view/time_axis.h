#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"

// Time as pictures write it: slots where the costs are units, seconds where they were measured.
namespace trestle::view {

// Auto takes Slots when every time is a whole multiple of 0.05 and nothing is shorter than that, as
// only assumed costs are; otherwise Seconds.
enum class TimeUnit { Auto, Slots, Seconds };

// Auto resolved for timelines that share one axis: Slots only if all of them look like slots.
TimeUnit resolve(TimeUnit unit, const std::vector<schedule::Timeline>& timelines);

// The longest time of which every compute action's begin and end is a whole multiple (their
// greatest common divisor), or 0 when there is none worth drawing: the shortest action would span
// more than 8 of them.
double slot_length(const schedule::Timeline& timeline);

// First begin and last end of all events; 0 and 0 without events.
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

// Round numbers (1, 2, 5 x 10^k) from 0 up to `length`, at most `most` of them (>= 2). The labels
// carry no unit.
std::vector<Tick> ticks(double length, TimeUnit unit, int most);

// What stands at the end of the axis: "slots", "s", "ms" or "us", as fits an axis of `length`.
std::string axis_unit(double length, TimeUnit unit);

// A duration in words: "33 slots", "310 ms".
std::string duration_text(double length, TimeUnit unit);

// x with that many decimals; trailing zeros stay ("27.30"), or go ("27.3"). From 1e9 on "1.234e+09".
enum class Zeros { Keep, Drop };
std::string decimal(double x, int decimals, Zeros zeros = Zeros::Keep);

// Round positions between two values for the axis of a chart: 1, 2, 5 x 10^k, at most `most` of
// them (>= 2), at least `least_step` apart.
std::vector<Tick> round_ticks(double low, double high, int most, double least_step = 0);

}  // namespace trestle::view
