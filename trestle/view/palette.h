#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "trestle/schedule/action.h"

// The colours and fonts of all pictures. Dark ink on every cell colour has a contrast of at least 7
// : 1. Forward and backward differ in lightness as well as in hue.
namespace trestle::view::palette {

inline constexpr std::string_view font_family =
    "Inter, 'Helvetica Neue', Helvetica, 'Segoe UI', Arial, 'DejaVu Sans', sans-serif";

inline constexpr std::string_view background_colour = "#ffffff";
inline constexpr std::string_view ink_colour = "#1d2733";    // titles and numbers
inline constexpr std::string_view quiet_colour = "#5b6875";  // all other text
inline constexpr std::string_view grid_line_colour = "#e4e8ec";
inline constexpr std::string_view axis_colour = "#9aa5b1";

inline constexpr std::string_view forward_colour = "#9ec9ec";
inline constexpr std::string_view backward_colour = "#f4bd86";
inline constexpr std::string_view input_grad_colour = "#f0d77b";
inline constexpr std::string_view weight_grad_colour = "#bfdba0";
inline constexpr std::string_view recompute_colour = "#cdc3ec";
inline constexpr std::string_view overlap_colour = "#e3cfc0";
inline constexpr std::string_view other_colour = "#ccd4dc";

inline constexpr std::string_view idle_colour = "#f6f8f9";
inline constexpr std::string_view idle_hatch_colour = "#d3dae1";
inline constexpr std::string_view skip_colour = "#1f5c99";
inline constexpr std::string_view skip_gradient_colour = "#b4541a";
inline constexpr std::string_view memory_colour = "#d5dde6";
inline constexpr std::string_view memory_line_colour = "#6b7f95";

// Messages of tensor ranks: the rank waits, or computes meanwhile.
inline constexpr std::string_view exposed_colour = "#b3372f";
inline constexpr std::string_view hidden_colour = "#4d8f62";

// The colour of line (or stage) `index` of a picture. The colours repeat after five, so labels tell
// the lines apart too.
std::string_view line_colour(std::size_t index);

// The colours of a rank where ranks hold slices of a thing: of a slice, which carries ink, and of a
// line. They repeat after eight, so numbers tell the ranks apart too.
std::string slice_colour(int rank);
std::string rank_line_colour(int rank);

std::string_view of_kind(schedule::Kind kind);

// A colour ("#rrggbb") mixed with white: 0 leaves it unchanged, 1 is white. Later stages of a rank
// are drawn lighter.
std::string lighter(std::string_view colour, double share);

}  // namespace trestle::view::palette
