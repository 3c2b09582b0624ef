#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/data/files/image.h"

// What a mask's pixels say: which of their values is which class. Masks come as grey pictures (0 and
// 255, or class ids), as palette pictures, whose values are the palette's indices, and in colours.
namespace trestle::data {

// 0xRRGGBB. A grey value or palette index v is the colour v, v, v, so the same masks are the same
// whether they were saved as grey or as RGB.
using MaskValue = std::uint32_t;

// "255" for a grey value or index, "#ff8000" for a colour. The other way round throws UsageError.
std::string to_string(MaskValue value);
MaskValue parse_mask_value(std::string_view text);

// The mask as it lies in the file, an alpha channel left out: 1 or 3 channels. Throws as read_image.
Image read_mask(const std::filesystem::path& path);

// What is in the masks of a data set.
struct MaskCensus {
  std::map<MaskValue, std::int64_t> pixels = {};  // how many pixels have each value
  // Files that cannot be read, or hold more than 256 different values, and why.
  std::map<std::filesystem::path, std::string> problems = {};
};

// Reads all of them, with so many threads. `progress` is called with (read, all), in this thread.
MaskCensus count_mask_values(const std::vector<std::filesystem::path>& masks, int threads,
                             const std::function<void(std::int64_t, std::int64_t)>& progress = {});

// The values of class 0, 1, ... `classes` - 1, so far as the values found can tell, those of
// `ignored` left aside:
// - all below `classes`: they are class ids, whether all occur or not;
// - all among `classes` grey values evenly from 0 to 255 (0, 127, 254): masks as `trestle predict`
//   writes them;
// - as many as classes, whatever they are: in order, black first.
// Throws UsageError with all values for anything else.
std::vector<MaskValue> find_mask_values(const MaskCensus& census, int classes,
                                        const std::vector<MaskValue>& ignored = {});

// "0 = 0 (83.1 % of all pixels), 1 = 128 (14.9 %), ignored: 255 (2.0 %)"; without a census "0 = 0, 1
// = 128, ignored: 255".
std::string describe_classes(const std::vector<MaskValue>& values, const MaskCensus& census = {},
                             const std::vector<MaskValue>& ignored = {});

// Turns masks into class ids.
class MaskClasses {
 public:
  // values[c] is what a pixel of class c has; pixels with one of `ignored` have none, and become
  // ignored_id. Throws UsageError unless they are 1 to 256 different ones, with `ignored` to 255, and
  // none of them ignored.
  explicit MaskClasses(std::vector<MaskValue> values, std::vector<MaskValue> ignored = {});

  static constexpr int ignored_id = 255;

  int count() const { return static_cast<int>(values_.size()); }

  // The class of each pixel of a mask of 1 or 3 channels, in 1 channel. Throws FormatError that
  // names `file` for a value that is no class.
  Image ids(const Image& mask, const std::filesystem::path& file) const;

 private:
  int find(MaskValue value) const;

  std::vector<MaskValue> values_, ignored_;
  std::map<MaskValue, int> classes_;
  std::vector<int> grey_;  // class of each grey value, -1 = none
};

}  // namespace trestle::data
