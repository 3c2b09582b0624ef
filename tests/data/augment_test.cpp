#include "trestle/data/augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <array>
#include <cmath>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/data/augment_volumes.h"
#include "trestle/data/loader.h"

namespace trestle::data {
namespace {

// A picture with a mask that numbers its pixels.
Sample picture(std::int64_t channels = 3) {
  const at::Tensor numbers = at::arange(5 * 7, at::kFloat);
  at::Tensor input = at::stack(std::vector<at::Tensor>(static_cast<std::size_t>(channels), numbers))
                         .reshape({channels, 5, 7})
                         .div(50);
  for (std::int64_t c = 0; c < channels; ++c) input[c].add_(0.1 * static_cast<double>(c));
  return {input, numbers.to(at::kLong).reshape({5, 7}), "p"};
}

TEST(Augment, FlipsPictureAndMask) {
  const Sample plain = picture();
  Variation variation;
  EXPECT_TRUE(vary(plain, variation).input.equal(plain.input));
  variation.mirrored = true;
  EXPECT_TRUE(vary(plain, variation).input.equal(plain.input.flip(2)));
  EXPECT_TRUE(vary(plain, variation).target.equal(plain.target.flip(1)));
  variation.upside_down = true;
  EXPECT_TRUE(vary(plain, variation).input.equal(plain.input.flip({1, 2})));
  EXPECT_TRUE(vary(plain, variation).target.equal(plain.target.flip({0, 1})));
}

// libtorch's sampling of a grid is the oracle.
TEST(Augment, CropsLikeGridSampling) {
  const Sample plain = picture();
  for (const auto& [side, left, top] : {std::tuple{0.5, 0.1, 0.3}, std::tuple{0.83, 0.17, 0.0}}) {
    const Sample cropped = vary(plain, {.side = side, .left = left, .top = top});
    // Grid coordinates go from -1 to 1.
    const at::Tensor theta =
        at::tensor({side, 0.0, 2 * left + side - 1, 0.0, side, 2 * top + side - 1})
            .reshape({1, 2, 3})
            .to(at::kFloat);
    const at::Tensor grid = at::affine_grid_generator(theta, {1, 3, 5, 7}, false);
    const at::Tensor smooth = at::grid_sampler(plain.input.unsqueeze(0), grid, 0, 1, false);
    EXPECT_TRUE(at::allclose(cropped.input, smooth[0], 1e-5, 1e-6));
    const at::Tensor nearest =
        at::grid_sampler(plain.target.to(at::kFloat).reshape({1, 1, 5, 7}), grid, 1, 1, false);
    EXPECT_TRUE(cropped.target.equal(nearest[0][0].to(at::kLong)));
  }
}

TEST(Augment, ColoursChangeLikeColorJitter) {
  const Sample plain = picture();
  const auto grey = [](const at::Tensor& x) {
    return (0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]).unsqueeze(0);
  };
  at::Tensor expected = (plain.input * 1.2).clamp(0, 1);
  expected = (grey(expected).mean() + 0.7 * (expected - grey(expected).mean())).clamp(0, 1);
  expected = (grey(expected) + 1.3 * (expected - grey(expected))).clamp(0, 1);
  const Sample changed = vary(plain, {.brightness = 1.2, .contrast = 0.7, .saturation = 1.3});
  EXPECT_TRUE(at::allclose(changed.input, expected, 1e-5, 1e-6));
  EXPECT_TRUE(changed.target.equal(plain.target));
  EXPECT_TRUE(plain.input.equal(picture().input)) << "the data set's tensor is unchanged";
  EXPECT_NO_THROW(vary(picture(1), {.brightness = 1.2, .saturation = 1.3}));
}

TEST(Augment, DrawsWithinRangesAndIndependently) {
  int mirrored = 0;
  for (std::uint64_t key = 0; key < 400; ++key) {
    const Variation all = draw_variation({.flip = Flip::Both, .crop = 0.3, .colour = 0.2}, key);
    mirrored += all.mirrored;
    EXPECT_GT(all.side, 0.7);
    EXPECT_LE(all.side, 1);
    EXPECT_GE(all.left, 0);
    EXPECT_LE(all.left + all.side, 1 + 1e-12);
    EXPECT_LE(all.top + all.side, 1 + 1e-12);
    for (const double factor : {all.brightness, all.contrast, all.saturation})
      EXPECT_LE(std::abs(factor - 1), 0.2);
    EXPECT_EQ(draw_variation({.colour = 0.2}, key).contrast, all.contrast);
    EXPECT_EQ(draw_variation({.flip = Flip::Horizontal}, key).mirrored, all.mirrored);
    EXPECT_FALSE(draw_variation({.flip = Flip::Horizontal}, key).upside_down);
  }
  EXPECT_GT(mirrored, 150);
  EXPECT_LT(mirrored, 250);
}

TEST(Augment, RejectsInvalidOptions) {
  EXPECT_THROW(draw_variation({.crop = 1}, 0), UsageError);
  EXPECT_THROW(draw_variation({.colour = -0.1}, 0), UsageError);
  EXPECT_THROW(draw_variation({.crop = std::nan("")}, 0), UsageError);
  EXPECT_THROW(vary({at::zeros({4}), at::zeros({}), "row"}, {}), UsageError);
  EXPECT_THROW(parse_flip("sideways"), UsageError);
  for (const std::string& name : flip_names()) EXPECT_NO_THROW(parse_flip(name));
}

TEST(Augment, OnePartChangesAsTogetherWithTheOther) {
  const Variation drawn{.mirrored = true,
                        .upside_down = true,
                        .side = 0.7,
                        .left = 0.2,
                        .top = 0.1,
                        .brightness = 1.2};
  Sample sample{at::rand({3, 12, 9}), at::randint(0, 4, {12, 9}, at::kLong), "a"};
  const Sample both = vary(sample, drawn);
  EXPECT_FALSE(both.target.equal(sample.target));
  EXPECT_TRUE(vary({sample.input, {}, "a"}, drawn).input.equal(both.input));
  EXPECT_TRUE(vary({{}, sample.target, "a"}, drawn).target.equal(both.target));
  const Sample row = vary({{}, at::zeros({}, at::kLong), "a"}, drawn);
  EXPECT_EQ(row.target.dim(), 0) << "a class is unchanged";
  EXPECT_THROW(vary({{}, {}, "a"}, drawn), UsageError);
}

class Pictures : public Dataset {
 public:
  std::int64_t size() const override { return 11; }
  Sample get(std::int64_t) const override { return picture(); }
};

at::Tensor inputs_of(int workers, std::int64_t epoch, std::int64_t first_batch = 0) {
  LoaderOptions options{.batch = 3, .order = Order::Shuffled, .seed = 5, .workers = workers};
  options.transform = [](Sample sample, std::uint64_t key) {
    return vary(std::move(sample),
                draw_variation({.flip = Flip::Both, .crop = 0.4, .colour = 0.3}, key));
  };
  const Loader loader(std::make_shared<Pictures>(), options);
  std::vector<at::Tensor> batches;
  for (Batch& batch : loader.epoch(epoch, first_batch)) batches.push_back(batch.inputs);
  return at::cat(batches);
}

TEST(Augment, NeitherWorkersNorAResumeChangeTheDraws) {
  const at::Tensor whole = inputs_of(1, 2);
  EXPECT_TRUE(inputs_of(3, 2).equal(whole));
  EXPECT_TRUE(inputs_of(2, 2, 2).equal(whole.narrow(0, 6, 5)));
  EXPECT_FALSE(inputs_of(1, 3).equal(whole)) << "another epoch has other variations";
  EXPECT_FALSE(whole[0].equal(whole[1])) << "each example has its own variation";
}

// --- volumes ---

// A patch of two channels with a mask that numbers its voxels.
Sample patch() {
  const at::Tensor numbers = at::arange(3 * 4 * 5, at::kLong).reshape({3, 4, 5});
  return {at::stack({numbers, 100 - numbers}).to(at::kFloat), numbers, "p"};
}

TEST(AugmentVolumes, FlipsPatchAndMaskAlongEachAxis) {
  const Sample plain = patch();
  for (int chosen = 0; chosen < 8; ++chosen) {
    const Axes flipped = {(chosen & 1) != 0, (chosen & 2) != 0, (chosen & 4) != 0};
    std::vector<std::int64_t> of_mask, of_input;
    for (std::int64_t axis = 0; axis < 3; ++axis)
      if (flipped[static_cast<std::size_t>(axis)])
        of_mask.push_back(axis), of_input.push_back(axis + 1);
    const Sample varied = vary_volume(plain, {.flipped = flipped});
    EXPECT_TRUE(varied.input.equal(plain.input.flip(of_input))) << chosen;
    EXPECT_TRUE(varied.target.equal(plain.target.flip(of_mask))) << chosen;
    EXPECT_TRUE(varied.input[0].equal(varied.target.to(at::kFloat))) << chosen << ": aligned";
  }
  EXPECT_TRUE(plain.input.equal(patch().input)) << "the data set's tensor is unchanged";
}

TEST(AugmentVolumes, IntensityMovesMeanAndDeviationOfEachChannel) {
  Sample plain = patch();
  plain.input = plain.input.mul_(0.1);
  const Sample varied = vary_volume(plain, {.contrast = 1.2, .brightness = -0.3});
  const at::Tensor mean = plain.input.mean({1, 2, 3}, true);
  const at::Tensor deviation = plain.input.std(at::IntArrayRef{1, 2, 3}, false, true);
  const at::Tensor expected = mean + 1.2 * (plain.input - mean) - 0.3 * deviation;
  EXPECT_TRUE(at::allclose(varied.input, expected, 1e-5, 1e-5));
  EXPECT_TRUE(varied.target.equal(plain.target));
  const Sample flat{at::ones({1, 2, 2, 2}), {}, "flat"};
  EXPECT_TRUE(vary_volume(flat, {.contrast = 0.7, .brightness = 0.5}).input.equal(flat.input));
}

TEST(AugmentVolumes, DrawsAreIndependentOfOtherOptions) {
  const VolumeAugmentOptions all{.flip_axes = parse_axes(axis_names()), .intensity = 0.4};
  std::array<int, 8> times = {};
  for (std::uint64_t key = 0; key < 800; ++key) {
    const VolumeVariation drawn = draw_volume_variation(all, key);
    ++times[static_cast<std::size_t>(drawn.flipped[0] + 2 * drawn.flipped[1] +
                                     4 * drawn.flipped[2])];
    EXPECT_LE(std::abs(drawn.contrast - 1), 0.4);
    EXPECT_LE(std::abs(drawn.brightness), 0.4);
    const VolumeVariation rows = draw_volume_variation({.flip_axes = parse_axes({"rows"})}, key);
    EXPECT_EQ(rows.flipped, (Axes{false, drawn.flipped[1], false}));
    EXPECT_EQ(rows.contrast, 1);
    EXPECT_EQ(draw_volume_variation({.intensity = 0.4}, key).contrast, drawn.contrast);
  }
  for (const int count : times) EXPECT_NEAR(count, 100, 40);
}

TEST(AugmentVolumes, OnePartChangesAsTogetherWithTheOther) {
  const VolumeVariation drawn{.flipped = {true, false, true}, .contrast = 1.1};
  const Sample plain = patch(), both = vary_volume(plain, drawn);
  EXPECT_TRUE(vary_volume({plain.input, {}, "a"}, drawn).input.equal(both.input));
  EXPECT_TRUE(vary_volume({{}, plain.target, "a"}, drawn).target.equal(both.target));
}

TEST(AugmentVolumes, RejectInvalidOptions) {
  EXPECT_THROW(parse_axes({"depth"}), UsageError);
  EXPECT_THROW(parse_axes({"rows", "rows"}), UsageError);
  EXPECT_THROW(draw_volume_variation({.intensity = 1}, 0), UsageError);
  EXPECT_THROW(draw_volume_variation({.intensity = -0.1}, 0), UsageError);
  EXPECT_THROW(vary_volume(picture(), {}), UsageError);
  EXPECT_THROW(vary_volume({{}, {}, "none"}, {}), UsageError);
  EXPECT_THROW(vary_volume({at::zeros({1, 2, 2, 2}), at::zeros({2, 2, 3}, at::kLong), "a"}, {}),
               UsageError);
}

}  // namespace
}  // namespace trestle::data
