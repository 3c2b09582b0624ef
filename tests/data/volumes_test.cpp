#include "trestle/data/volumes.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "tests/data/scratch.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/nifti.h"
#include "trestle/data/loader.h"
#include "trestle/data/sliding_window.h"
#include "trestle/data/synthetic/synthesize.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;
using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// --- windows ---

TEST(SlidingWindow, CoversEverySideWithTheOverlapOrMore) {
  EXPECT_EQ(window_starts(10, 10, 0.5), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(window_starts(12, 4, 0), (std::vector<std::int64_t>{0, 4, 8}));
  EXPECT_EQ(window_starts(13, 4, 0.5), (std::vector<std::int64_t>{0, 2, 4, 5, 7, 9}));
  for (std::int64_t size = 1; size <= 40; ++size)
    for (std::int64_t window = 1; window <= size; ++window)
      for (const double overlap : {0.0, 0.25, 0.5, 0.9}) {
        const auto starts = window_starts(size, window, overlap);
        ASSERT_EQ(starts.front(), 0);
        ASSERT_EQ(starts.back(), size - window);
        for (std::size_t i = 1; i < starts.size(); ++i) {
          ASSERT_GT(starts[i], starts[i - 1]);
          ASSERT_LE(static_cast<double>(starts[i] - starts[i - 1]),
                    std::max(1.0, static_cast<double>(window) * (1 - overlap)));
        }
      }
  EXPECT_THROW(window_starts(4, 5, 0.5), UsageError);
  EXPECT_THROW(window_starts(4, 2, 1), UsageError);
}

TEST(SlidingWindow, WeightsFallFromTheMiddle) {
  for (const std::string& name : blend_names()) {
    const at::Tensor weights = blend_weights({3, 5, 8}, parse_blend(name));
    EXPECT_EQ(weights.max().item<float>(), 1) << name;
    EXPECT_GT(weights.min().item<float>(), 0) << name;
    EXPECT_TRUE(weights.equal(weights.flip({0, 1, 2}))) << name;
    EXPECT_EQ(weights[1][2][3].item<float>(), 1) << name;
  }
  // A deviation of an eighth of the side.
  const at::Tensor bell = blend_weights({1, 1, 17}, Blend::Gaussian);
  const double deviation = 17.0 / 8;
  EXPECT_NEAR(bell[0][0][4].item<double>(), std::exp(-16 / (2 * deviation * deviation)), 1e-6);
  const at::Tensor tent = blend_weights({1, 1, 3}, Blend::Linear);
  EXPECT_NEAR(tent[0][0][0].item<double>(), 0.5, 1e-6);
  EXPECT_THROW(parse_blend("gauss"), UsageError);
}

// A "model" without context gives each voxel the same scores in every window, so blended
// probabilities are those of the whole volume.
TEST(SlidingWindow, ModelWithoutContextGivesTheWholeVolume) {
  torch::manual_seed(3);
  const auto model = [](const at::Tensor& windows) {
    return torch::cat({windows, 1 - windows.sum(1, true), windows.narrow(1, 0, 1).square()}, 1);
  };
  for (const Sides& sides : {Sides{9, 14, 11}, Sides{4, 6, 5}, Sides{3, 14, 4}}) {
    const at::Tensor volume = torch::randn({2, sides[0], sides[1], sides[2]});
    const at::Tensor expected = torch::softmax(model(volume.unsqueeze(0)), 1)[0];
    for (const Blend blend : {Blend::Gaussian, Blend::Linear, Blend::Constant})
      for (const std::int64_t batch : {1, 3}) {
        const at::Tensor blended = slide(
            volume, {.window = {4, 6, 5}, .overlap = 0.5, .blend = blend, .batch = batch}, model);
        ASSERT_EQ(blended.sizes(), expected.sizes());
        EXPECT_LT((blended - expected).abs().max().item<float>(), 1e-5);
      }
  }
}

// Against a plain loop over voxels.
TEST(SlidingWindow, WeighsEachWindowsProbabilities) {
  torch::manual_seed(4);
  const at::Tensor volume = torch::randn({1, 1, 1, 10});
  const auto model = [](const at::Tensor& windows) {
    return torch::cat({windows * windows.mean({1, 2, 3, 4}, true), torch::ones_like(windows)}, 1);
  };
  const SlidingWindowOptions options{
      .window = {1, 1, 4}, .overlap = 0.5, .blend = Blend::Gaussian, .batch = 2};
  const at::Tensor blended = slide(volume, options, model);
  const at::Tensor weights = blend_weights(options.window, options.blend);
  for (std::int64_t x = 0; x < 10; ++x) {
    double sum = 0, total = 0;
    for (const std::int64_t start : {0, 2, 4, 6}) {
      if (x < start || x >= start + 4) continue;
      const double mean = volume.narrow(3, start, 4).mean().item<double>();
      const double score = volume[0][0][0][x].item<double>() * mean;
      const double probability = 1 / (1 + std::exp(1 - score));
      const double weight = weights[0][0][x - start].item<double>();
      sum += weight * probability;
      total += weight;
    }
    EXPECT_NEAR(blended[0][0][0][x].item<double>(), sum / total, 1e-6) << x;
  }
  EXPECT_THROW(slide(volume, options, [](const at::Tensor& w) { return w.flatten(1); }),
               UsageError);
}

// --- volumes and patches ---

class VolumesOnDisk : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch;
    synthesize_volumes(*scratch_ / "scans", 4, {.depth = 12, .height = 20, .width = 24, .seed = 3});
  }
  static void TearDownTestSuite() { delete scratch_; }

  static std::vector<ImagePair> pairs() {
    return list_volume_pairs(*scratch_ / "scans/volumes", *scratch_ / "scans/labels").pairs;
  }
  static std::shared_ptr<Volumes> open(VolumeOptions options = {.classes = 3}) {
    return std::make_shared<Volumes>(pairs(), options);
  }
  // A file with one value everywhere but in its first voxel.
  static ImagePair flat_pair(const std::string& id, const Sides& sides, float label,
                             const VolumeSpace& of_mask = {}) {
    Volume volume{{.channels = 1, .sides = sides, .space = VolumeSpace{}}};
    volume.values.assign(static_cast<std::size_t>(volume.voxels()), 7);
    volume.values[0] = 9;
    const ImagePair pair{id, *scratch_ / (id + ".nii"), *scratch_ / (id + "_label.nii.gz")};
    write_nifti(pair.image, volume, VoxelType::Float32);
    volume.values.assign(volume.values.size(), 0);
    volume.values[0] = label;
    volume.space = of_mask;
    write_nifti(pair.mask, volume, VoxelType::Int16);
    return pair;
  }

  static Scratch* scratch_;
};
Scratch* VolumesOnDisk::scratch_ = nullptr;

TEST_F(VolumesOnDisk, AreNormalizedAndHaveClassIds) {
  const auto volumes = open();
  ASSERT_EQ(volumes->size(), 4);
  EXPECT_EQ(shared_spacing(*volumes), "2 x 1 x 1 mm");
  const auto loaded = volumes->load(1);
  EXPECT_EQ(loaded->image.sizes(), at::IntArrayRef({1, 12, 20, 24}));
  EXPECT_NEAR(loaded->image.mean().item<double>(), 0, 1e-5);
  EXPECT_NEAR(loaded->image.std(false).item<double>(), 1, 1e-5);
  EXPECT_EQ(loaded->mask.max().item<std::int64_t>(), 2);
  EXPECT_EQ(loaded->foreground.size(), 2u);
  EXPECT_EQ(volumes->load(1), loaded) << "kept in memory";
  const Volume plain = read_volume(volumes->pair(1).image);
  const at::Tensor as_stored = volume_to_tensor(plain, VolumeNormalization::None);
  EXPECT_EQ(as_stored.flatten()[5].item<float>(), plain.values[5]);
}

TEST_F(VolumesOnDisk, KeepNoMoreThanTheirMemory) {
  const auto volumes = open({.classes = 3, .cache = 1});
  const auto first = volumes->load(0);
  volumes->load(1);
  const auto again = volumes->load(0);
  EXPECT_NE(again, first);
  EXPECT_TRUE(again->image.equal(first->image));
}

TEST_F(VolumesOnDisk, PatchesDependOnTheKeyAlone) {
  const auto volumes = open();
  const VolumePatches patches(volumes, {2, 0}, {.patch = {8, 12, 10}, .per_volume = 5});
  EXPECT_EQ(patches.size(), 10);
  const Sample sample = patches.draw(7, Part::Both, 99);
  EXPECT_EQ(sample.input.sizes(), at::IntArrayRef({1, 8, 12, 10}));
  EXPECT_EQ(sample.target.sizes(), at::IntArrayRef({8, 12, 10}));
  EXPECT_THAT(sample.name, HasSubstr("scan_000 at "));
  EXPECT_TRUE(patches.draw(7, Part::Input, 99).input.equal(sample.input));
  EXPECT_FALSE(patches.draw(7, Part::Input, 99).target.defined());
  EXPECT_TRUE(patches.draw(7, Part::Target, 99).target.equal(sample.target));
  EXPECT_FALSE(patches.draw(7, Part::Both, 100).input.equal(sample.input));
  // Each patch is a part of its volume.
  const auto whole = volumes->load(0);
  const std::string place = sample.name.substr(std::string("scan_000 at ").size());
  const std::vector<std::string> start = split(place, ',');
  at::Tensor part = whole->image, mask = whole->mask;
  for (std::int64_t d = 0; d < 3; ++d) {
    const std::int64_t first = std::stoll(start[static_cast<std::size_t>(d)]);
    part = part.narrow(d + 1, first, sample.target.size(d));
    mask = mask.narrow(d, first, sample.target.size(d));
  }
  EXPECT_TRUE(part.equal(sample.input));
  EXPECT_TRUE(mask.to(at::kLong).equal(sample.target));
}

// The loader draws other patches in another epoch, and the same with any number of workers.
TEST_F(VolumesOnDisk, EpochsHaveOtherPatches) {
  const auto patches =
      std::make_shared<VolumePatches>(open(), std::vector<std::int64_t>{0, 1, 2, 3},
                                      PatchOptions{.patch = {8, 12, 10}, .per_volume = 2});
  const auto names = [&](std::int64_t epoch, int workers) {
    std::vector<std::string> names;
    const Loader loader(patches, {.batch = 4, .seed = 5, .workers = workers});
    for (const Batch& batch : loader.epoch(epoch))
      names.insert(names.end(), batch.names.begin(), batch.names.end());
    return names;
  };
  EXPECT_EQ(names(0, 1), names(0, 3));
  EXPECT_NE(names(0, 1), names(1, 1));
}

TEST_F(VolumesOnDisk, ForegroundShareAimsAtEachClassEquallyOften) {
  const auto volumes = open();
  const Sides one = {1, 1, 1};  // a patch of one voxel shows what the sampler aims at
  const auto shares = [&](double foreground) {
    const VolumePatches patches(volumes, {0},
                                {.patch = one, .per_volume = 1, .foreground = foreground});
    std::map<std::int64_t, double> count;
    for (std::uint64_t key = 0; key < 2000; ++key)
      count[patches.draw(0, Part::Target, key).target.item<std::int64_t>()] += 1.0 / 2000;
    return count;
  };
  std::map<std::int64_t, double> aimed = shares(1);
  EXPECT_EQ(aimed[0], 0);
  EXPECT_NEAR(aimed[1], 0.5, 0.04);
  EXPECT_NEAR(aimed[2], 0.5, 0.04);
  const double background = volumes->load(0)->mask.eq(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(shares(0)[0], background, 0.03);
  EXPECT_NEAR(shares(0.6)[0], 0.4 * background, 0.04);
}

TEST_F(VolumesOnDisk, WindowsCoverEachVolumeOnce) {
  const auto volumes = open();
  const VolumeWindows windows(volumes, {1, 3}, {6, 10, 12});
  EXPECT_EQ(windows.size(), 2 * 2 * 2 * 2);
  at::Tensor sum = torch::zeros({}, at::kDouble);
  for (std::int64_t i = 0; i < windows.size() / 2; ++i)
    sum += windows.get(i).input.to(at::kDouble).sum();
  EXPECT_NEAR(sum.item<double>(), volumes->load(1)->image.to(at::kDouble).sum().item<double>(),
              1e-3);
  EXPECT_THAT(windows.get(15).name, HasSubstr("scan_003 at 6, 10, 12"));
}

TEST_F(VolumesOnDisk, RefuseWhatDoesNotFit) {
  EXPECT_THAT(
      message_of<UsageError>([&] {
        VolumePatches(open(), {0}, {.patch = {16, 16, 16}});
      }),
      AllOf(HasSubstr("scan_000.nii.gz"), HasSubstr("12 x 20 x 24"), HasSubstr("16 x 16 x 16")));
  EXPECT_THAT(
      message_of<FormatError>([&] { open({.classes = 2})->load(0); }),
      AllOf(HasSubstr("labels/scan_000.nii.gz"), HasSubstr("the label 2"), HasSubstr("0 to 1")));
  const ImagePair strange = flat_pair("strange", {2, 3, 4}, 255);
  EXPECT_THROW(Volumes({strange}, {}).load(0), FormatError);
  const auto known = Volumes({strange}, {.label_values = {0, 255}}).load(0);
  EXPECT_EQ(known->mask.sum().item<std::int64_t>(), 1);
  const auto ignored = Volumes({strange}, {.ignored = {255}}).load(0);
  EXPECT_TRUE(ignored->foreground.empty());
  const auto shared =
      std::make_shared<Volumes>(std::vector<ImagePair>{strange}, VolumeOptions{.ignored = {255}});
  EXPECT_EQ(VolumeWindows(shared, {0}, {2, 3, 4}).get(0).target.min().item<std::int64_t>(), -100);
  VolumeSpace moved;
  moved.qform_code = 1;
  moved.qform = {0, 0, 0, 5, 0, 0};
  EXPECT_THAT(message_of<FormatError>([&] {
                Volumes({flat_pair("moved", {2, 3, 4}, 1, moved)}, {});
              }),
              AllOf(HasSubstr("moved_label.nii.gz"), HasSubstr("lies elsewhere")));
  ImagePair mixed = flat_pair("small", {2, 3, 3}, 1);
  mixed.image = strange.image;
  EXPECT_THAT(
      message_of<FormatError>([&] { Volumes({mixed}, {}); }),
      AllOf(HasSubstr("small_label.nii.gz"), HasSubstr("2 x 3 x 3"), HasSubstr("2 x 3 x 4")));
  std::vector<ImagePair> different = pairs();
  different.push_back(strange);
  EXPECT_THAT(message_of<UsageError>([&] { shared_spacing(Volumes(different, {.classes = 3})); }),
              AllOf(HasSubstr("strange.nii"), HasSubstr("1 x 1 x 1 mm"),
                    HasSubstr("2 x 1 x 1 mm in scan_000.nii.gz"), HasSubstr("does not resample")));
}

TEST_F(VolumesOnDisk, FilesWithoutUnitHaveThatOfTheOtherFiles) {
  VolumeSpace space;
  space.pixdim = {1, 1, 1, 2, 1, 1, 1, 1};
  const auto with_units = [&](int units) {
    space.units = units;
    Volume volume{{.channels = 1, .sides = {2, 3, 4}, .space = space}};
    volume.values.assign(static_cast<std::size_t>(volume.voxels()), 0);
    volume.values[0] = 1;
    const fs::path file = *scratch_ / text("units_", units, ".nii");
    write_nifti(file, volume, VoxelType::Int16);
    return ImagePair{text("units_", units), file, file};
  };
  const ImagePair none = with_units(0), millimetres = with_units(2), micrometres = with_units(3);
  EXPECT_EQ(shared_spacing(Volumes({none, millimetres}, {})), "2 x 1 x 1 mm");
  EXPECT_EQ(shared_spacing(Volumes({none, none}, {})), "2 x 1 x 1");
  EXPECT_THROW(shared_spacing(Volumes({none, millimetres, micrometres}, {})), UsageError);
}

TEST_F(VolumesOnDisk, SpacingIsComparedToAHundredth) {
  VolumeInfo info{.channels = 1, .sides = {1, 1, 1}, .space = VolumeSpace{}};
  info.space->pixdim = {1, 0.5, 0.75, 3, 1, 1, 1, 1};
  EXPECT_EQ(spacing_in_words(info), "3 x 0.75 x 0.5 mm");
  EXPECT_TRUE(is_spacing("3 x 0.75 x 0.5 mm", info));
  EXPECT_TRUE(is_spacing("3.02 x 0.754 x 0.5 mm", info));
  EXPECT_FALSE(is_spacing("3.2 x 0.75 x 0.5 mm", info));
  EXPECT_FALSE(is_spacing("3 x 0.75 x 0.5 um", info));
  EXPECT_FALSE(is_spacing("any", info));
  EXPECT_TRUE(is_spacing("3 x 0.75 x 0.5", info)) << "no unit";
  info.space->units = 0;  // as nibabel's new images
  EXPECT_EQ(spacing_in_words(info), "3 x 0.75 x 0.5");
  EXPECT_TRUE(is_spacing("3 x 0.75 x 0.5 mm", info));
  EXPECT_FALSE(is_spacing("3 x 1.5 x 0.5 mm", info));
  info.space.reset();
  EXPECT_EQ(spacing_in_words(info), "unknown");
  EXPECT_TRUE(is_spacing("unknown", info));
  EXPECT_FALSE(is_spacing("1 x 1 x 1 mm", info));
}

}  // namespace
}  // namespace trestle::data
