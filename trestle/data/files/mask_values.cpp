#include "trestle/data/files/mask_values.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/channels.h"
#include "trestle/data/files/image_file.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_values = 256;

constexpr MaskValue grey(MaskValue v) { return v << 16 | v << 8 | v; }
constexpr bool is_grey(MaskValue value) { return value == grey(value & 255); }

// Visits the values of a mask, pixel by pixel.
template <class Visit>
void for_each_value(const Image& mask, Visit visit) {
  const std::uint8_t* from = mask.pixels.data();
  const std::uint8_t* end = from + mask.pixels.size();
  if (mask.channels == 1) {
    for (; from != end; ++from) visit(grey(*from));
  } else {
    for (; from != end; from += 3)
      visit(static_cast<MaskValue>(from[0]) << 16 | static_cast<MaskValue>(from[1]) << 8 | from[2]);
  }
}

// Throws FormatError for a file with more values than the maximum number of classes.
std::unordered_map<MaskValue, std::int64_t> count(const fs::path& path) {
  std::unordered_map<MaskValue, std::int64_t> found;
  MaskValue last = 0;
  std::int64_t* pixels = &found[last];  // neighbours are mostly equal
  for_each_value(read_mask(path), [&](MaskValue value) {
    if (value != last) {
      pixels = &found[value];
      last = value;
      if (found.size() > most_values + 1)
        throw FormatError(text("the mask has more than ", most_values, " different values"),
                          {.file = path.string(),
                           .hint = "A pixel of a mask is a class. JPEG and smooth scaling blur "
                                   "them: save masks as PNG, resized to the nearest sample."});
    }
    ++*pixels;
  });
  return found;
}

std::string list_values(const std::map<MaskValue, std::int64_t>& pixels) {
  std::vector<std::string> words;
  for (const auto& [value, count] : pixels) {
    if (words.size() == 12) {
      words.push_back(text("and ", pixels.size() - 12, " more"));
      break;
    }
    words.push_back(to_string(value));
  }
  return join(words, ", ");
}

// "128 is in 1 of 10 masks: masks/b.png", a line for each of the rarest values.
std::string rare_values(const MaskCensus& census) {
  std::int64_t most = 0;
  for (const auto& [value, with] : census.masks) most = std::max(most, with.count);
  std::vector<std::pair<std::int64_t, MaskValue>> rare;
  for (const auto& [value, with] : census.masks)
    if (census.pixels.contains(value) && with.count < most) rare.emplace_back(with.count, value);
  std::ranges::sort(rare);
  constexpr std::size_t shown = 5;
  std::string lines;
  for (std::size_t i = 0; i < std::min(rare.size(), shown); ++i) {
    const auto& [count, value] = rare[i];
    lines += text("\n  ", to_string(value), " is in ", count, " of ", most, " masks",
                  count == 1 ? ": " : ", first in ", census.masks.at(value).first.string());
  }
  return lines;
}

}  // namespace

std::string to_string(MaskValue value) {
  if (is_grey(value)) return std::to_string(value & 255);
  char words[16];
  std::snprintf(words, sizeof words, "#%06x", static_cast<unsigned>(value & 0xffffff));
  return words;
}

MaskValue parse_mask_value(std::string_view text_) {
  const bool colour = text_.starts_with('#');
  const std::string_view digits = text_.substr(colour ? 1 : 0);
  MaskValue value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, colour ? 16 : 10);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  if (!whole || (colour ? digits.size() != 6 : value > 255))
    throw UsageError(text("'", text_, "' is not a value of a mask"),
                     {.hint = "Write a grey value or palette index from 0 to 255, or a colour as "
                              "#ff8000."});
  return colour ? value : grey(value);
}

Image read_mask(const fs::path& path) {
  Image mask = read_image(path, {.orientation = Orientation::Upright});
  if (mask.channels == 1 || mask.channels == 3) return mask;
  return with_channels(mask, mask.channels == 2 ? 1 : 3);
}

MaskCensus count_mask_values(const std::vector<fs::path>& masks, int threads,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  MaskCensus census;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  std::int64_t done = 0;  // guarded by the mutex, like the census
  const auto all = static_cast<std::int64_t>(masks.size());
  enum class Report { Yes, No };
  const auto work = [&](Report report) {
    for (std::size_t i = next++; i < masks.size(); i = next++) {
      std::unordered_map<MaskValue, std::int64_t> found;
      std::string problem;
      try {
        found = count(masks[i]);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      const std::lock_guard lock(mutex);
      if (!problem.empty()) census.problems[masks[i]] = problem;
      for (const auto& [value, pixels] : found) {
        if (pixels == 0) continue;
        census.pixels[value] += pixels;
        MaskCensus::Masks& with = census.masks[value];
        ++with.count;
        if (with.first.empty() || masks[i] < with.first) with.first = masks[i];
      }
      ++done;
      if (report == Report::Yes && progress && done < all) progress(done, all);
    }
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) workers.emplace_back(work, Report::No);
  work(Report::Yes);
  for (std::thread& worker : workers) worker.join();
  if (progress && all > 0) progress(all, all);  // the last mask may have been another thread's
  return census;
}

std::vector<MaskValue> find_mask_values(const MaskCensus& all, int classes,
                                        const std::vector<MaskValue>& ignored) {
  MaskCensus census{.pixels = all.pixels, .masks = all.masks};
  for (const MaskValue value : ignored) census.pixels.erase(value);
  if (census.pixels.empty() && !all.pixels.empty())
    throw UsageError(
        text("'mask_ignore' in [data] lists every value of the masks: ", list_values(all.pixels)),
        {.hint = "No pixel is left to learn from. Leave out the values of classes."});
  const auto spaced = [&](MaskValue step) {
    std::vector<MaskValue> values;
    for (MaskValue c = 0; c < static_cast<MaskValue>(classes); ++c)
      values.push_back(grey(c * step));
    return values;
  };
  const auto all_among = [&](const std::vector<MaskValue>& values) {
    return std::ranges::all_of(census.pixels, [&](const auto& found) {
      return std::ranges::find(values, found.first) != values.end();
    });
  };
  if (classes >= 1 && classes <= static_cast<int>(most_values)) {
    const std::vector<MaskValue> ids = spaced(1);
    if (all_among(ids)) return ids;
    const std::vector<MaskValue> predicted =
        spaced(255 / static_cast<MaskValue>(std::max(classes - 1, 1)));
    if (all_among(predicted)) return predicted;
    if (census.pixels.size() == static_cast<std::size_t>(classes)) {
      std::vector<MaskValue> values;
      for (const auto& [value, pixels] : census.pixels) values.push_back(value);
      return values;
    }
  }
  throw UsageError(
      text("the masks have ", census.pixels.size(), " different values (",
           list_values(census.pixels), "), which do not fit ", classes, " classes",
           rare_values(census)),
      {.hint = text("Set classes = ", census.pixels.size(),
                    " in [model] if each is a class, or list the classes' values as mask_values in "
                    "[data]. List a value without a class in mask_ignore. Unexpected values come "
                    "from JPEG or smooth scaling: save masks as PNG.")});
}

std::string describe_classes(const std::vector<MaskValue>& values, const MaskCensus& census,
                             const std::vector<MaskValue>& ignored) {
  double all = 0;
  for (const auto& [value, pixels] : census.pixels) all += static_cast<double>(pixels);
  const auto share_of = [&](MaskValue value, const char* of) -> std::string {
    if (all == 0) return "";
    const auto found = census.pixels.find(value);
    const double pixels = found == census.pixels.end() ? 0 : static_cast<double>(found->second);
    char share[64];
    std::snprintf(share, sizeof share, " (%.1f %%%s)", 100 * pixels / all, of);
    return share;
  };
  std::vector<std::string> words;
  for (std::size_t c = 0; c < values.size(); ++c)
    words.push_back(
        text(c, " = ", to_string(values[c]), share_of(values[c], c == 0 ? " of all pixels" : "")));
  for (std::size_t i = 0; i < ignored.size(); ++i)
    words.push_back(
        text(i == 0 ? "ignored: " : "", to_string(ignored[i]), share_of(ignored[i], "")));
  return join(words, ", ");
}

MaskClasses::MaskClasses(std::vector<MaskValue> values, std::vector<MaskValue> ignored)
    : values_(std::move(values)), ignored_(std::move(ignored)) {
  for (std::size_t c = 0; c < values_.size(); ++c)
    if (!classes_.emplace(values_[c], static_cast<int>(c)).second)
      throw UsageError(text("the mask value ", to_string(values_[c]), " is given for two classes"));
  const std::size_t most = most_values - (ignored_.empty() ? 0 : 1);
  if (values_.empty() || values_.size() > most)
    throw UsageError(text("masks can have 1 to ", most, " classes, not ", values_.size()));
  for (const MaskValue value : ignored_)
    if (const auto [place, is_new] = classes_.emplace(value, ignored_id);
        !is_new && place->second != ignored_id)
      throw UsageError(text("the mask value ", to_string(value), " is class ", place->second,
                            " but also ignored"));
  for (MaskValue v = 0; v < 256; ++v) grey_.push_back(find(grey(v)));
}

int MaskClasses::find(MaskValue value) const {
  const auto found = classes_.find(value);
  return found == classes_.end() ? -1 : found->second;
}

Image MaskClasses::ids(const Image& mask, const fs::path& file) const {
  Image out = Image::blank(mask.width, mask.height, 1);
  std::uint8_t* to = out.pixels.data();
  for_each_value(mask, [&](MaskValue value) {
    const int id = is_grey(value) ? grey_[value & 255] : find(value);
    if (id < 0)
      throw FormatError(
          text("the mask has the value ", to_string(value), ", but the classes are ",
               describe_classes(values_, {}, ignored_)),
          {.file = file.string(),
           .hint = "Check 'classes' in [model] and, if set, 'mask_values' and 'mask_ignore' in "
                   "[data]."});
    *to++ = static_cast<std::uint8_t>(id);
  });
  return out;
}

}  // namespace trestle::data
