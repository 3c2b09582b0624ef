#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"
#include "trestle/data/files/image_pairs.h"
#include "trestle/data/files/volume_file.h"

// Volumes with a class for each voxel, in two folders (files/volume_file.h), and patches of them.
//
//   auto scans = std::make_shared<Volumes>(
//       list_volume_pairs("scans", "labels").pairs, VolumeOptions{.classes = 3});
//   VolumePatches train(scans, {0, 1, 2}, {.patch = {16, 48, 48}, .per_volume = 8});
//   at::Tensor x = train.get(0).input;   // float [1, 16, 48, 48]
//   at::Tensor y = train.get(0).target;  // int64 [16, 48, 48]
namespace trestle::data {

// How a volume's values become the model's inputs.
enum class VolumeNormalization {
  None,
  Volume,  // minus the mean of the channel, divided by its standard deviation
};

// "volume", "none".
std::vector<std::string> volume_normalization_names();
VolumeNormalization parse_volume_normalization(const std::string& name);

struct VolumeOptions {
  VolumeNormalization normalization = VolumeNormalization::Volume;
  int classes = 2;
  // The label of each class; empty: labels are class ids, 0 to `classes` - 1.
  std::vector<std::int64_t> label_values = {};
  std::vector<std::int64_t> ignored = {};  // labels that count neither in the loss nor in a metric
  // Bytes of decoded volumes that are kept in memory, at least one volume.
  std::int64_t cache = std::int64_t{2} << 30;
};

// float [channels, slices, rows, columns], normalized. Throws like read_volume().
at::Tensor load_volume(const std::filesystem::path& path, VolumeNormalization normalization);

// The same for a volume in memory.
at::Tensor volume_to_tensor(const Volume& volume, VolumeNormalization normalization);

struct LoadedVolume {
  at::Tensor image;  // as by load_volume()
  at::Tensor mask;   // int16 [slices, rows, columns], class ids, or -1 where a voxel is ignored
  // For each class above 0 the positions of its voxels in the mask, at most a million of each.
  std::vector<std::vector<std::int64_t>> foreground;

  std::int64_t bytes() const;
};

// Pairs of files that are decoded when they are needed, and kept while memory is left. Threads may
// share it.
class Volumes {
 public:
  // Reads the headers. Throws FormatError with the file's name if an image and its mask differ in
  // size or place, or if images differ in their number of channels; UsageError without pairs.
  Volumes(std::vector<ImagePair> pairs, const VolumeOptions& options);
  ~Volumes();
  Volumes(const Volumes&) = delete;
  Volumes& operator=(const Volumes&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(pairs_.size()); }
  const ImagePair& pair(std::int64_t index) const;
  const VolumeInfo& info(std::int64_t index) const;
  const VolumeOptions& options() const { return options_; }

  // Decodes both files, or takes them from memory. Throws FormatError for a damaged file and for a
  // label that is no class.
  std::shared_ptr<const LoadedVolume> load(std::int64_t index) const;

 private:
  class Cache;
  std::vector<ImagePair> pairs_;
  std::vector<VolumeInfo> infos_;
  VolumeOptions options_;
  std::unique_ptr<Cache> cache_;
};

// "2 x 1 x 1 mm", the spacing that all volumes share; "unknown" for arrays of NumPy. A file without
// a unit is taken to have the unit of the other files. Throws UsageError that names two volumes of
// different spacings (by more than a hundredth).
std::string shared_spacing(const Volumes& volumes);
std::string spacing_in_words(const VolumeInfo& info);
// Whether the words are this volume's spacing, to a hundredth. If one of them names no unit, the
// numbers decide.
bool is_spacing(const std::string& words, const VolumeInfo& info);

struct PatchOptions {
  Sides patch = {};
  std::int64_t per_volume = 8;
  // The share of patches whose middle is a voxel of a class above 0, drawn so that each class that
  // is there is as likely as another. The rest lies anywhere.
  double foreground = 0.5;
};

// Patches that are drawn at random, `per_volume` of each volume in an epoch. They overlap each
// other. draw() places a patch by its key, so that each epoch has other patches, and get() by the
// example's number. Throws UsageError for a volume that is smaller than a patch.
class VolumePatches : public Dataset {
 public:
  VolumePatches(std::shared_ptr<const Volumes> volumes, std::vector<std::int64_t> indices,
                const PatchOptions& options);

  std::int64_t size() const override {
    return static_cast<std::int64_t>(indices_.size()) * options_.per_volume;
  }
  Sample get(std::int64_t index) const override;
  Sample draw(std::int64_t index, Part part, std::uint64_t key) const override;

 private:
  std::shared_ptr<const Volumes> volumes_;
  std::vector<std::int64_t> indices_;
  PatchOptions options_;
};

// All windows that cover the volumes, in order, each of the size of a patch: for validation.
class VolumeWindows : public Dataset {
 public:
  VolumeWindows(std::shared_ptr<const Volumes> volumes, std::vector<std::int64_t> indices,
                const Sides& window);

  std::int64_t size() const override { return static_cast<std::int64_t>(places_.size()); }
  Sample get(std::int64_t index) const override;

 private:
  struct Place {
    std::int64_t volume;
    Sides start;
  };
  std::shared_ptr<const Volumes> volumes_;
  Sides window_;
  std::vector<Place> places_;
};

}  // namespace trestle::data
