#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/data/files/image.h"

// The classes of a mask's pixel values. Masks are grey pictures (0 and 255, or class ids), palette
// pictures, whose values are the palette's indices, or colour pictures.
namespace trestle::data {

// 0xRRGGBB. A grey value or palette index v is the colour v, v, v, so a mask has the same values
// whether it was saved as grey or as RGB.
using MaskValue = std::uint32_t;

// "255" for a grey value or index, "#ff8000" for a colour. parse_mask_value() throws UsageError for
// other text.
std::string to_string(MaskValue value);
MaskValue parse_mask_value(std::string_view text);

// Reads a mask without its alpha channel: 1 or 3 channels. Throws like read_image.
Image read_mask(const std::filesystem::path& path);

// The values in the masks of a data set.
struct MaskCensus {
  std::map<MaskValue, std::int64_t> pixels = {};  // number of pixels with each value
  // The masks that have each value: how many, and the first one by name.
  struct Masks {
    std::int64_t count = 0;
    std::filesystem::path first = {};
  };
  std::map<MaskValue, Masks> masks = {};
  // Files that cannot be read, or have more than 256 different values, and the reason.
  std::map<std::filesystem::path, std::string> problems = {};
};

// Reads all masks with this number of threads. `progress` is called with (read, all), in the
// calling thread.
MaskCensus count_mask_values(const std::vector<std::filesystem::path>& masks, int threads,
                             const std::function<void(std::int64_t, std::int64_t)>& progress = {});

// The values of class 0, 1, ... `classes` - 1, derived from the values found without `ignored`:
// - If all values are below `classes`, they are class ids, whether all occur or not.
// - If all are among `classes` evenly spaced grey values from 0 to 255 (0, 127, 254), they are
// masks written by `trestle predict`.
// - If the number of values equals `classes`, they are the classes in order, black first.
// Throws UsageError with all values otherwise, and with a file of each value that few masks have.
std::vector<MaskValue> find_mask_values(const MaskCensus& census, int classes,
                                        const std::vector<MaskValue>& ignored = {});

// "0 = 0 (83.1 % of all pixels), 1 = 128 (14.9 %), ignored: 255 (2.0 %)"; without a census "0 = 0,
// 1 = 128, ignored: 255".
std::string describe_classes(const std::vector<MaskValue>& values, const MaskCensus& census = {},
                             const std::vector<MaskValue>& ignored = {});

// Converts masks to class ids.
class MaskClasses {
 public:
  // values[c] is the pixel value of class c. Pixels with one of the `ignored` values become
  // ignored_id. Throws UsageError unless there are 1 to 256 different values (255 with `ignored`),
  // none of them ignored.
  explicit MaskClasses(std::vector<MaskValue> values, std::vector<MaskValue> ignored = {});

  static constexpr int ignored_id = 255;

  int count() const { return static_cast<int>(values_.size()); }

  // The class of each pixel of a mask of 1 or 3 channels, in 1 channel. Throws FormatError with the
  // name of `file` for a value that is not a class.
  Image ids(const Image& mask, const std::filesystem::path& file) const;

 private:
  int find(MaskValue value) const;

  std::vector<MaskValue> values_, ignored_;
  std::map<MaskValue, int> classes_;
  std::vector<int> grey_;  // class of each grey value, -1 = none
};

}  // namespace trestle::data
