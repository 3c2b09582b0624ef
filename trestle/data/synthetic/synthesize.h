#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

// Synthetic data with the folders, names and formats of the two data sets, so that everything runs
// without a login. The same seed gives the same files on every machine with the same libjpeg. They
// are written to a marked folder (synthetic_folder.h).
namespace trestle::data {

// Called after each written picture with (pictures written, all pictures).
using SynthesisProgress = std::function<void(std::int64_t, std::int64_t)>;

struct SynthesizeCarvanaOptions {
  int width = 1918;  // Carvana's own size; at least 16
  int height = 1280;
  std::uint64_t seed = 42;
  SynthesisProgress progress = {};
};

// `count` pictures of cars on a turntable, 16 views of each car: <out>/train_hq/<id>_NN.jpg with
// <out>/train_masks/<id>_NN_mask.gif, <id> of 12 hexadecimal digits and NN from 01 to 16. Each car
// has its own build, colour and place, each picture its own light and noise. The mask is exactly
// the car, without its shadow. Throws UsageError for a count or size that is too small, and like
// make_synthetic_folder.
void synthesize_carvana(const std::filesystem::path& out, std::int64_t count,
                        const SynthesizeCarvanaOptions& options = {});

// The marker's description of them: "480 images of cars, 192 x 128 pixels, seed 42".
std::string describe_synthetic_carvana(std::int64_t count,
                                       const SynthesizeCarvanaOptions& options = {});

struct SynthesizeMnistOptions {
  std::int64_t test_count = 0;  // 0: a sixth of `count`, as MNIST, at least 1
  std::uint64_t seed = 42;
  SynthesisProgress progress = {};
};

// `count` training digits and some test digits of 28 x 28 pixels in the four files of
// mnist_files.h: strokes with random points, slant, rotation, size, position and thickness, the ten
// digits in random order and equally often. Throws like synthesize_carvana.
void synthesize_mnist(const std::filesystem::path& out, std::int64_t count,
                      const SynthesizeMnistOptions& options = {});

// The marker's description of them: "6000 digits to train on, 1000 to test with, seed 42".
std::string describe_synthetic_mnist(std::int64_t count,
                                     const SynthesizeMnistOptions& options = {});

struct SynthesizeVolumesOptions {
  int depth = 32;  // slices, at least 8; rows and columns at least 16
  int height = 64;
  int width = 64;
  double slice_spacing = 2;  // millimetres; rows and columns have 1
  std::uint64_t seed = 42;
  SynthesisProgress progress = {};
};

// `count` drawn scans with thick slices: <out>/volumes/scan_NNN.nii.gz (int16) and
// <out>/labels/scan_NNN.nii.gz (uint8). In each, two or three bright winding tubes (class 1) and
// three to six round blobs (class 2), half as bright, lie in grey tissue with a slow slope of
// brightness and noise. Tubes and blobs are round in millimetres, so flat in voxels. Each scan has
// its own place in the room. Throws like synthesize_carvana.
void synthesize_volumes(const std::filesystem::path& out, std::int64_t count,
                        const SynthesizeVolumesOptions& options = {});

inline constexpr int synthetic_volume_classes = 3;

// The marker's description of them: "24 volumes, 24 x 48 x 48 voxels, seed 42".
std::string describe_synthetic_volumes(std::int64_t count,
                                       const SynthesizeVolumesOptions& options = {});

}  // namespace trestle::data
