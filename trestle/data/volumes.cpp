#include "trestle/data/volumes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/data/segmentation.h"
#include "trestle/data/sliding_window.h"

// Plain loops, not ATen operators: they run on a loader's threads, while training uses the intra-op
// threads.
namespace trestle::data {
namespace {

constexpr std::int16_t ignored_id = -1;

struct NormalizationName {
  std::string name;
  VolumeNormalization normalization;
};

const std::vector<NormalizationName>& normalizations() {
  static const std::vector<NormalizationName> all = {{"volume", VolumeNormalization::Volume},
                                                     {"none", VolumeNormalization::None}};
  return all;
}

// Mean 0 and deviation 1; a channel of one value becomes 0.
void normalize_channel(float* values, std::int64_t count) {
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i];
  const double mean = sum / static_cast<double>(count);
  for (std::int64_t i = 0; i < count; ++i) squares += (values[i] - mean) * (values[i] - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(count));
  const double factor = deviation > 0 ? 1 / deviation : 0;
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((values[i] - mean) * factor);
}

std::string sides_in_words(const VolumeInfo& info) { return join(info.sides, " x "); }

// The class of each label.
class LabelClasses {
 public:
  explicit LabelClasses(const VolumeOptions& options) : options_(options) {}

  std::int16_t id_of(float label, const std::filesystem::path& file) const {
    if (label == last_label_) return last_id_;
    const std::optional<std::int16_t> id = find(label);
    if (!id)
      throw FormatError(text("has the label ", label, ", which is no class: ", known()),
                        {.file = file.string(),
                         .hint = "Set 'classes' in [model], or 'mask_values' and 'mask_ignore' in "
                                 "[data]."});
    last_label_ = label;
    last_id_ = *id;
    return last_id_;
  }

 private:
  std::optional<std::int16_t> find(float label) const {
    if (label != std::floor(label) || std::abs(label) > 1e9F) return std::nullopt;
    const auto value = static_cast<std::int64_t>(label);
    if (std::ranges::find(options_.ignored, value) != options_.ignored.end()) return ignored_id;
    if (options_.label_values.empty()) {
      if (value < 0 || value >= options_.classes) return std::nullopt;
      return static_cast<std::int16_t>(value);
    }
    const auto found = std::ranges::find(options_.label_values, value);
    if (found == options_.label_values.end()) return std::nullopt;
    return static_cast<std::int16_t>(found - options_.label_values.begin());
  }
  std::string known() const {
    return options_.label_values.empty()
               ? text("classes are 0 to ", options_.classes - 1)
               : text("the classes have the labels ", join(options_.label_values, ", "));
  }

  const VolumeOptions& options_;
  // Most voxels have their neighbour's label. NaN equals none.
  mutable float last_label_ = std::numeric_limits<float>::quiet_NaN();
  mutable std::int16_t last_id_ = 0;
};

at::Tensor mask_of(const Volume& volume, const VolumeOptions& options,
                   const std::filesystem::path& file) {
  if (volume.channels != 1)
    throw FormatError(text("is a mask of ", volume.channels, " channels, not one"),
                      {.file = file.string()});
  const LabelClasses classes(options);
  at::Tensor mask = at::empty(volume.sides, at::kShort);
  std::int16_t* to = mask.mutable_data_ptr<std::int16_t>();
  for (const float label : volume.values) *to++ = classes.id_of(label, file);
  return mask;
}

std::vector<std::vector<std::int64_t>> foreground_of(const at::Tensor& mask) {
  constexpr std::int64_t most = 1'000'000;
  const std::int16_t* ids = mask.const_data_ptr<std::int16_t>();
  std::vector<std::int64_t> counts;
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    if (ids[i] <= 0) continue;
    const auto id = static_cast<std::size_t>(ids[i]);
    if (counts.size() <= id) counts.resize(id + 1);
    ++counts[id];
  }
  std::vector<std::vector<std::int64_t>> places(counts.size());
  std::vector<std::int64_t> seen(counts.size());
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    if (ids[i] <= 0) continue;
    const auto id = static_cast<std::size_t>(ids[i]);
    const std::int64_t every = (counts[id] + most - 1) / most;
    if (seen[id]++ % every == 0) places[id].push_back(i);
  }
  std::erase_if(places, [](const auto& of_class) { return of_class.empty(); });
  return places;
}

void check_pair(const ImagePair& pair, const VolumeInfo& image, const VolumeInfo& mask) {
  const std::string name = pair.image.filename().string();
  if (image.sides != mask.sides)
    throw FormatError(text("the mask has ", sides_in_words(mask), " voxels, but its volume ", name,
                           " has ", sides_in_words(image)),
                      {.file = pair.mask.string()});
  if (!image.space || !mask.space || same_place(*image.space, *mask.space)) return;
  throw FormatError(
      text("the mask lies elsewhere than its volume ", name, ": its affine is [",
           join(mask.space->affine(), " "), "], not [", join(image.space->affine(), " "), "]"),
      {.file = pair.mask.string(),
       .hint = "Resample the mask to its volume, or repair the header."});
}

std::int64_t checked_index(const std::vector<ImagePair>& pairs, std::int64_t index) {
  if (index >= 0 && std::cmp_less(index, pairs.size())) return index;
  throw UsageError(text("volume ", index, " of ", pairs.size()));
}

void check_fits(const Volumes& volumes, const std::vector<std::int64_t>& indices,
                const Sides& patch) {
  for (const std::int64_t index : indices) {
    const VolumeInfo& info = volumes.info(index);
    bool fits = true;
    for (std::size_t d = 0; d < 3; ++d) fits &= patch[d] >= 1 && patch[d] <= info.sides[d];
    if (fits) continue;
    throw UsageError(
        text("the volume has ", sides_in_words(info), " voxels, a patch has ", join(patch, " x ")),
        {.file = volumes.pair(index).image.string(),
         .hint = "Choose a smaller 'patch' in [data]."});
  }
}

// Copies the part of a contiguous [..., slices, rows, columns] that begins at `start`.
template <class From, class To, class Convert>
void copy_part(const From* from, const Sides& sides, const Sides& start, const Sides& part, To* to,
               Convert convert) {
  for (std::int64_t z = 0; z < part[0]; ++z)
    for (std::int64_t y = 0; y < part[1]; ++y) {
      const From* row = from + ((start[0] + z) * sides[1] + start[1] + y) * sides[2] + start[2];
      for (std::int64_t x = 0; x < part[2]; ++x) *to++ = convert(row[x]);
    }
}

Sample cut_sample(const LoadedVolume& volume, const Sides& start, const Sides& part, Part wanted) {
  const at::Tensor &image = volume.image, &mask = volume.mask;
  const Sides sides = {mask.size(0), mask.size(1), mask.size(2)};
  const std::int64_t voxels = mask.numel(), voxels_of_part = part[0] * part[1] * part[2];
  Sample sample;
  if (wanted != Part::Target) {
    sample.input = at::empty({image.size(0), part[0], part[1], part[2]}, at::kFloat);
    for (std::int64_t c = 0; c < image.size(0); ++c)
      copy_part(image.const_data_ptr<float>() + c * voxels, sides, start, part,
                sample.input.mutable_data_ptr<float>() + c * voxels_of_part,
                [](float value) { return value; });
  }
  if (wanted == Part::Input) return sample;
  sample.target = at::empty(part, at::kLong);
  copy_part(mask.const_data_ptr<std::int16_t>(), sides, start, part,
            sample.target.mutable_data_ptr<std::int64_t>(), [](std::int16_t id) {
              return id == ignored_id ? ignored_target : static_cast<std::int64_t>(id);
            });
  return sample;
}

std::string name_of_part(const ImagePair& pair, const Sides& start) {
  return text(pair.id, " at ", join(start, ", "));
}

Sides draw_start(const LoadedVolume& volume, const PatchOptions& options, Random& random) {
  const Sides sides = {volume.mask.size(0), volume.mask.size(1), volume.mask.size(2)};
  const bool aims = random.uniform() < options.foreground && !volume.foreground.empty();
  Sides start;
  if (!aims) {
    for (std::size_t d = 0; d < 3; ++d)
      start[d] = static_cast<std::int64_t>(
          random.below(static_cast<std::uint64_t>(sides[d] - options.patch[d] + 1)));
    return start;
  }
  const auto& places = volume.foreground[random.below(volume.foreground.size())];
  const std::int64_t voxel = places[random.below(places.size())];
  const Sides middle = {voxel / (sides[1] * sides[2]), voxel / sides[2] % sides[1],
                        voxel % sides[2]};
  for (std::size_t d = 0; d < 3; ++d)
    start[d] =
        std::clamp<std::int64_t>(middle[d] - options.patch[d] / 2, 0, sides[d] - options.patch[d]);
  return start;
}

}  // namespace

std::vector<std::string> volume_normalization_names() {
  std::vector<std::string> names;
  for (const NormalizationName& known : normalizations()) names.push_back(known.name);
  return names;
}

VolumeNormalization parse_volume_normalization(const std::string& name) {
  return choose("normalization", name, normalizations()).normalization;
}

at::Tensor volume_to_tensor(const Volume& volume, VolumeNormalization normalization) {
  at::Tensor tensor =
      at::empty({volume.channels, volume.sides[0], volume.sides[1], volume.sides[2]}, at::kFloat);
  float* values = tensor.mutable_data_ptr<float>();
  std::ranges::copy(volume.values, values);
  if (normalization == VolumeNormalization::Volume)
    for (std::int64_t c = 0; c < volume.channels; ++c)
      normalize_channel(values + c * volume.voxels(), volume.voxels());
  return tensor;
}

at::Tensor load_volume(const std::filesystem::path& path, VolumeNormalization normalization) {
  return volume_to_tensor(read_volume(path), normalization);
}

std::int64_t LoadedVolume::bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(image.nbytes() + mask.nbytes());
  for (const auto& places : foreground) bytes += 8 * static_cast<std::int64_t>(places.size());
  return bytes;
}

// The volumes that were used last.
class Volumes::Cache {
 public:
  explicit Cache(std::int64_t most) : most_(most) {}

  std::shared_ptr<const LoadedVolume> find(std::int64_t index) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, index, &Entry::first);
    if (found == kept_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().second;
  }

  void keep(std::int64_t index, std::shared_ptr<const LoadedVolume> volume) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(kept_, index, &Entry::first) != kept_.end()) return;
    bytes_ += volume->bytes();
    kept_.emplace_front(index, std::move(volume));
    while (bytes_ > most_ && kept_.size() > 1) {
      bytes_ -= kept_.back().second->bytes();
      kept_.pop_back();
    }
  }

 private:
  using Entry = std::pair<std::int64_t, std::shared_ptr<const LoadedVolume>>;
  std::mutex mutex_;
  std::list<Entry> kept_;
  std::int64_t most_, bytes_ = 0;
};

Volumes::Volumes(std::vector<ImagePair> pairs, const VolumeOptions& options)
    : pairs_(std::move(pairs)), options_(options), cache_(std::make_unique<Cache>(options.cache)) {
  if (pairs_.empty()) throw UsageError("there are no volumes");
  for (const ImagePair& pair : pairs_) {
    infos_.push_back(read_volume_info(pair.image));
    check_pair(pair, infos_.back(), read_volume_info(pair.mask));
    if (infos_.back().channels != infos_.front().channels)
      throw FormatError(
          text("has ", infos_.back().channels, " channels, but ",
               pairs_.front().image.filename().string(), " has ", infos_.front().channels),
          {.file = pair.image.string()});
  }
}

Volumes::~Volumes() = default;

const ImagePair& Volumes::pair(std::int64_t index) const {
  return pairs_[static_cast<std::size_t>(checked_index(pairs_, index))];
}

const VolumeInfo& Volumes::info(std::int64_t index) const {
  return infos_[static_cast<std::size_t>(checked_index(pairs_, index))];
}

std::shared_ptr<const LoadedVolume> Volumes::load(std::int64_t index) const {
  const ImagePair& files = pair(index);
  if (auto kept = cache_->find(index)) return kept;
  auto loaded = std::make_shared<LoadedVolume>();
  const Volume image = read_volume(files.image), mask = read_volume(files.mask);
  check_pair(files, image, mask);  // the files may have changed since their headers were read
  loaded->image = volume_to_tensor(image, options_.normalization);
  loaded->mask = mask_of(mask, options_, files.mask);
  loaded->foreground = foreground_of(loaded->mask);
  cache_->keep(index, loaded);
  return loaded;
}

namespace {

// "" where the file names none, as nibabel's new images do.
std::string unit_of_space(const VolumeSpace& space) {
  const int units = space.units & 7;
  return units == 1 ? "m" : units == 2 ? "mm" : units == 3 ? "um" : "";
}

bool names_a_unit(const VolumeInfo& info) {
  return info.space && !unit_of_space(*info.space).empty();
}

}  // namespace

std::string spacing_in_words(const VolumeInfo& info) {
  if (!info.space) return "unknown";
  const std::string unit = unit_of_space(*info.space);
  return describe_spacing(info.space->spacing()) + (unit.empty() ? "" : " " + unit);
}

bool is_spacing(const std::string& words, const VolumeInfo& info) {
  if (!info.space) return words == spacing_in_words(info);
  std::array<double, 3> spacing = {};
  int read = 0;
  if (std::sscanf(words.c_str(), "%lf x %lf x %lf%n", &spacing[0], &spacing[1], &spacing[2],
                  &read) != 3)
    return false;
  const std::array<double, 3> own = info.space->spacing();
  for (std::size_t d = 0; d < 3; ++d)
    if (!(std::abs(spacing[d] - own[d]) <= 0.01 * own[d])) return false;
  const std::string unit = trim(words.substr(static_cast<std::size_t>(read)));
  const std::string own_unit = unit_of_space(*info.space);
  return unit.empty() || own_unit.empty() || unit == own_unit;
}

std::string shared_spacing(const Volumes& volumes) {
  std::int64_t with_unit = 0;
  while (with_unit < volumes.size() && !names_a_unit(volumes.info(with_unit))) ++with_unit;
  const std::int64_t compared = with_unit < volumes.size() ? with_unit : 0;
  const std::string first = spacing_in_words(volumes.info(compared));
  for (std::int64_t i = 0; i < volumes.size(); ++i) {
    if (is_spacing(first, volumes.info(i))) continue;
    throw UsageError(
        text("the spacing of the voxels is ", spacing_in_words(volumes.info(i)), ", but ", first,
             " in ", volumes.pair(compared).image.filename().string()),
        {.file = volumes.pair(i).image.string(),
         .hint = "trestle does not resample. Resample the volumes to one spacing, or "
                 "set spacing = \"any\" in [data] to train on voxels of any size."});
  }
  return first;
}

VolumePatches::VolumePatches(std::shared_ptr<const Volumes> volumes,
                             std::vector<std::int64_t> indices, const PatchOptions& options)
    : volumes_(std::move(volumes)), indices_(std::move(indices)), options_(options) {
  if (options.per_volume < 1 || !(options.foreground >= 0 && options.foreground <= 1))
    throw UsageError(text("cannot draw ", options.per_volume, " patches of a volume, a share of ",
                          options.foreground, " of them in the foreground"));
  check_fits(*volumes_, indices_, options.patch);
}

Sample VolumePatches::get(std::int64_t index) const {
  constexpr std::uint64_t without_epoch = 0;
  return draw(index, Part::Both, keyed_seed(without_epoch, 0, index, 0));
}

Sample VolumePatches::draw(std::int64_t index, Part part, std::uint64_t key) const {
  if (index < 0 || index >= size()) throw UsageError(text("patch ", index, " of ", size()));
  const std::int64_t volume = indices_[static_cast<std::size_t>(index / options_.per_volume)];
  const std::shared_ptr<const LoadedVolume> loaded = volumes_->load(volume);
  Random random(key);
  const Sides start = draw_start(*loaded, options_, random);
  Sample sample = cut_sample(*loaded, start, options_.patch, part);
  sample.name = name_of_part(volumes_->pair(volume), start);
  return sample;
}

VolumeWindows::VolumeWindows(std::shared_ptr<const Volumes> volumes,
                             std::vector<std::int64_t> indices, const Sides& window)
    : volumes_(std::move(volumes)), window_(window) {
  check_fits(*volumes_, indices, window);
  for (const std::int64_t index : indices)
    for (const Sides& start : windows_of(volumes_->info(index).sides, window, 0))
      places_.push_back({index, start});
}

Sample VolumeWindows::get(std::int64_t index) const {
  if (index < 0 || index >= size()) throw UsageError(text("window ", index, " of ", size()));
  const Place& place = places_[static_cast<std::size_t>(index)];
  Sample sample = cut_sample(*volumes_->load(place.volume), place.start, window_, Part::Both);
  sample.name = name_of_part(volumes_->pair(place.volume), place.start);
  return sample;
}

}  // namespace trestle::data
