#pragma once

#include <string>
#include <string_view>

#include "trestle/schedule/action.h"

// The colours and the type of all pictures. Dark ink on every cell colour has a contrast of at
// least 7 : 1, and forward and backward differ in lightness as well as in hue.
namespace trestle::view::palette {

inline constexpr std::string_view kFontFamily =
    "Inter, 'Helvetica Neue', Helvetica, 'Segoe UI', Arial, 'DejaVu Sans', sans-serif";

inline constexpr std::string_view kBackground = "#ffffff";
inline constexpr std::string_view kInk = "#1d2733";    // titles and numbers
inline constexpr std::string_view kQuiet = "#5b6875";  // everything beside them
inline constexpr std::string_view kGridLine = "#e4e8ec";
inline constexpr std::string_view kAxis = "#9aa5b1";

inline constexpr std::string_view kForward = "#9ec9ec";
inline constexpr std::string_view kBackward = "#f4bd86";
inline constexpr std::string_view kInputGrad = "#f4bd86";
inline constexpr std::string_view kWeightGrad = "#bfdba0";
inline constexpr std::string_view kRecompute = "#cdc3ec";
inline constexpr std::string_view kOverlap = "#e3cfc0";
inline constexpr std::string_view kOther = "#ccd4dc";

inline constexpr std::string_view kIdle = "#f6f8f9";
inline constexpr std::string_view kIdleHatch = "#d3dae1";
inline constexpr std::string_view kSkip = "#1f5c99";
inline constexpr std::string_view kSkipGradient = "#b4541a";
inline constexpr std::string_view kMemory = "#d5dde6";
inline constexpr std::string_view kMemoryLine = "#6b7f95";

// Lines of charts, in order; told apart without colour by their labels.
inline constexpr std::string_view kLines[] = {"#1f6fb5", "#cf6a1d", "#3f8f5c", "#8657b8",
                                              "#5b6875"};

std::string_view of_kind(schedule::Kind kind);

// A colour ("#rrggbb") mixed with white: 0 leaves it, 1 is white. For later stages of the same
// rank.
std::string lighter(std::string_view colour, double share);

}  // namespace trestle::view::palette
