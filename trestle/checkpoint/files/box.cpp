#include "trestle/checkpoint/files/box.h"

#include <algorithm>
#include <utility>

#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

bool covers(const Box& box, const Box& region) {
  for (std::size_t d = 0; d < region.sizes.size(); ++d)
    if (box.offset[d] > region.offset[d] || box.end(d) < region.end(d)) return false;
  return true;
}

bool meets(const Box& box, const Box& region) {
  for (std::size_t d = 0; d < region.sizes.size(); ++d)
    if (box.offset[d] >= region.end(d) || box.end(d) <= region.offset[d]) return false;
  return true;
}

// Cuts a region that this box overlaps but does not cover, at the first of the box's faces inside
// the region. This never cuts boxes in a grid.
std::pair<Box, Box> cut_at(const Box& region, const Box& box) {
  std::pair<Box, Box> halves{region, region};
  for (std::size_t d = 0; d < region.sizes.size(); ++d) {
    const bool begins_inside = box.offset[d] > region.offset[d];
    if (!begins_inside && box.end(d) >= region.end(d)) continue;
    const std::int64_t at = begins_inside ? box.offset[d] : box.end(d);
    halves.first.sizes[d] = at - region.offset[d];
    halves.second.offset[d] = at;
    halves.second.sizes[d] = region.end(d) - at;
    break;
  }
  return halves;
}

// A region of the tensor, and the boxes that overlap it.
struct CoverRegion {
  Box box;
  std::vector<std::size_t> boxes;
};

CoverRegion part_of(const CoverRegion& region, const Box& half, const std::vector<Box>& boxes) {
  CoverRegion part{half, {}};
  for (const std::size_t i : region.boxes)
    if (meets(boxes[i], half)) part.boxes.push_back(i);
  return part;
}

// Box `covering` covers the region: any other box there overlaps it.
std::optional<CoverFault> find_overlap(std::size_t covering, const CoverRegion& region,
                                       const std::vector<Box>& boxes) {
  for (const std::size_t other : region.boxes)
    if (other != covering)
      return CoverFault{CoverFault::Kind::Overlap, *intersection(boxes[covering], boxes[other]),
                        std::min(covering, other), std::max(covering, other)};
  return std::nullopt;
}

}  // namespace

Box whole_box(const Sizes& shape) { return {Sizes(shape.size(), 0), shape}; }

std::int64_t elements_of(const Sizes& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

bool lies_in(const Box& box, const Sizes& shape) {
  if (box.offset.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (box.offset[d] < 0 || box.sizes[d] < 0 || box.offset[d] > shape[d] ||
        box.sizes[d] > shape[d] - box.offset[d])
      return false;
  return true;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    both.offset[d] = std::max(a.offset[d], b.offset[d]);
    both.sizes[d] = std::min(a.end(d), b.end(d)) - both.offset[d];
    if (both.sizes[d] <= 0) return std::nullopt;
  }
  return both;
}

std::string to_string(const Box& box) {
  std::vector<std::string> slices;
  for (std::size_t d = 0; d < box.sizes.size(); ++d)
    slices.push_back(text(box.offset[d], ":", box.end(d)));
  return text("[", join(slices, ", "), "]");
}

std::vector<BoxOverlap> overlaps_of(const Box& wanted, const std::vector<Box>& stored) {
  std::vector<BoxOverlap> overlaps;
  for (std::size_t i = 0; i < stored.size(); ++i)
    if (auto both = intersection(wanted, stored[i])) overlaps.push_back({i, std::move(*both)});
  return overlaps;
}

std::optional<CoverFault> find_cover_fault(const Sizes& shape, const std::vector<Box>& boxes) {
  if (elements_of(shape) == 0) {
    if (!boxes.empty()) return std::nullopt;
    return CoverFault{.box = whole_box(shape)};
  }
  CoverRegion all{whole_box(shape), {}};
  for (std::size_t i = 0; i < boxes.size(); ++i)
    if (elements_of(boxes[i].sizes) > 0) all.boxes.push_back(i);
  std::size_t work = 0;
  const std::size_t most_work = 1000 * (boxes.size() + 16);
  std::vector<CoverRegion> left = {std::move(all)};
  while (!left.empty()) {
    const CoverRegion region = std::move(left.back());
    left.pop_back();
    work += region.boxes.size() + 1;
    if (work > most_work) return CoverFault{CoverFault::Kind::Ragged, region.box};
    if (region.boxes.empty()) return CoverFault{CoverFault::Kind::Hole, region.box};
    const auto covering = std::find_if(region.boxes.begin(), region.boxes.end(),
                                       [&](std::size_t i) { return covers(boxes[i], region.box); });
    if (covering != region.boxes.end()) {
      if (auto fault = find_overlap(*covering, region, boxes)) return fault;
      continue;
    }
    // Uses the box in the middle: if boxes are rows, half of them come before it.
    const auto [first, second] = cut_at(region.box, boxes[region.boxes[region.boxes.size() / 2]]);
    left.push_back(part_of(region, second, boxes));
    left.push_back(part_of(region, first, boxes));
  }
  return std::nullopt;
}

}  // namespace trestle::checkpoint
