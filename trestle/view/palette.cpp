#include "trestle/view/palette.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace trestle::view::palette {

std::string_view line_colour(std::size_t index) {
  constexpr std::array<std::string_view, 5> colours = {"#1f6fb5", "#cf6a1d", "#3f8f5c", "#8657b8",
                                                       "#5b6875"};
  return colours[index % colours.size()];
}

namespace {

// Four hues, and the same four lighter.
std::string rank_shade(int rank, double first, double second) {
  return lighter(line_colour(static_cast<std::size_t>(rank % 4)),
                 rank / 4 % 2 == 0 ? first : second);
}

}  // namespace

std::string slice_colour(int rank) { return rank_shade(rank, 0.5, 0.78); }

std::string rank_line_colour(int rank) { return rank_shade(rank, 0, 0.45); }

std::string_view of_kind(schedule::Kind kind) {
  using schedule::Kind;
  switch (kind) {
    case Kind::Forward:
      return forward_colour;
    case Kind::Backward:
      return backward_colour;
    case Kind::InputGrad:
      return input_grad_colour;
    case Kind::WeightGrad:
      return weight_grad_colour;
    case Kind::Recompute:
      return recompute_colour;
    case Kind::OverlapForwardBackward:
      return overlap_colour;
    default:
      return other_colour;
  }
}

std::string lighter(std::string_view colour, double share) {
  if (share <= 0) return std::string(colour);
  const long rgb = std::strtol(std::string(colour.substr(1)).c_str(), nullptr, 16);
  const auto mix = [&](int shift) {
    const double channel = static_cast<double>((rgb >> shift) & 0xFF);
    return static_cast<unsigned>(std::lround(channel + (255 - channel) * share));
  };
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "#%02x%02x%02x", mix(16) & 0xFFu, mix(8) & 0xFFu,
                mix(0) & 0xFFu);
  return buffer;
}

}  // namespace trestle::view::palette
