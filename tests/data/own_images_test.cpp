#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <cmath>
#include <string>

#include "tests/data/scratch.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/check.h"
#include "trestle/data/classification.h"
#include "trestle/data/files/channels.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"
#include "trestle/data/segmentation.h"

// A user's own pictures and masks.
namespace trestle::data {
namespace {

using support::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

Image gradient(int width, int height, int channels) {
  Image image = Image::blank(width, height, channels);
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<std::uint8_t>(i * 37 % 251);
  return image;
}

TEST(Picture, EveryImageGetsTheRequestedChannels) {
  const Scratch scratch;
  for (int channels = 1; channels <= 4; ++channels) {
    const Image image = gradient(9, 7, channels);
    write_png(scratch / "a.png", image);
    for (const int wanted : {1, 3}) {
      const at::Tensor x = load_picture(scratch / "a.png", {.channels = wanted});
      ASSERT_EQ(x.sizes(), (std::vector<std::int64_t>{wanted, 7, 9}));
      const Image same = with_channels(image, wanted);
      for (int c = 0; c < wanted; ++c)
        ASSERT_EQ(x[c][3][5].item<float>(), same.at(5, 3, c) / 255.0f);
    }
  }
  EXPECT_THAT(message_of([&] { load_picture(scratch / "a.png", {.channels = 4}); }),
              HasSubstr("1 channel (grey) or 3 (RGB), not 4"));
}

TEST(Picture, EveryImageGetsTheRequestedSize) {
  const Scratch scratch;
  const Image image = gradient(9, 7, 3);
  write_png(scratch / "a.png", image);
  const at::Tensor x = load_picture(scratch / "a.png", {.width = 12, .height = 4});
  ASSERT_EQ(x.sizes(), (std::vector<std::int64_t>{3, 4, 12}));
  EXPECT_EQ(x[1][2][7].item<float>(), resize_bicubic(image, 12, 4).at(7, 2, 1) / 255.0f);
  EXPECT_THROW(load_picture(scratch / "a.png", {.width = 12}), UsageError);
  EXPECT_THROW(load_picture(scratch / "a.png", {.scale = 0.5, .width = 12, .height = 4}),
               UsageError);
}

TEST(Segmentation, MasksOfAnyKindAndSize) {
  const Scratch scratch;
  for (const char* name : {"images", "masks"}) std::filesystem::create_directory(scratch / name);
  Image mask = Image::blank(8, 6, 3);
  mask.at(2, 1, 0) = 255;
  for (const auto& [id, scale] : {std::pair{"a", 1}, std::pair{"b", 2}}) {
    write_png(scratch / "images" / (std::string(id) + ".png"), gradient(8 * scale, 6 * scale, 4));
    write_png(scratch / "masks" / (std::string(id) + ".png"),
              resize_nearest(mask, 8 * scale, 6 * scale));
  }
  SegmentationOptions options{
      .mask_values = {parse_mask_value("#000000"), parse_mask_value("#ff0000")}};
  options.picture = {.width = 8, .height = 6};
  const SegmentationDataset data(scratch / "images", scratch / "masks", options);
  for (const int i : {0, 1}) {
    const Sample sample = data.get(i);
    EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{3, 6, 8}));
    EXPECT_EQ(sample.target.sum().item<std::int64_t>(), 1);
    EXPECT_EQ(sample.target[1][2].item<std::int64_t>(), 1);
  }
  options.mask_values.pop_back();
  EXPECT_THAT(message_of([&] {
                SegmentationDataset(scratch / "images", scratch / "masks", options).get(0);
              }),
              AllOf(HasSubstr("masks/a.png"), HasSubstr("value #ff0000")));
}

// The value 255 ("void") of some data sets, and a colour.
TEST(Segmentation, IgnoredValuesHaveNoClass) {
  const Scratch scratch;
  for (const char* name : {"images", "masks"}) std::filesystem::create_directory(scratch / name);
  write_png(scratch / "images/a.png", gradient(4, 2, 3));
  Image mask = Image::blank(4, 2, 1);
  mask.at(1, 0, 0) = 1;
  mask.at(3, 1, 0) = 255;
  write_png(scratch / "masks/a.png", mask);
  const MaskCensus census = count_mask_values({scratch / "masks/a.png"}, 1);
  EXPECT_THROW(find_mask_values(census, 2), UsageError);
  const std::vector<MaskValue> ignored = {parse_mask_value("255")};
  const std::vector<MaskValue> found = find_mask_values(census, 2, ignored);
  EXPECT_EQ(describe_classes(found, census, ignored),
            "0 = 0 (75.0 % of all pixels), 1 = 1 (12.5 %), ignored: 255 (12.5 %)");
  for (const std::vector<MaskValue>& values : {found, std::vector<MaskValue>{}}) {
    const SegmentationDataset data(scratch / "images", scratch / "masks",
                                   {.mask_values = values, .ignored = ignored});
    const at::Tensor target = data.get(0).target;
    EXPECT_EQ(target[0][1].item<std::int64_t>(), 1);
    EXPECT_EQ(target[1][3].item<std::int64_t>(), ignored_target);
    EXPECT_EQ(target.sum().item<std::int64_t>(), 1 + ignored_target);
  }
  EXPECT_THAT(
      message_of([&] {
        SegmentationDataset(scratch / "images", scratch / "masks", {.mask_values = found}).get(0);
      }),
      AllOf(HasSubstr("value 255"), HasSubstr("mask_ignore")));
  EXPECT_THAT(message_of([&] { MaskClasses(found, {found[1]}); }),
              HasSubstr("1 is class 1 but also ignored"));
  std::vector<MaskValue> many;
  for (int v = 0; v < 256; ++v) many.push_back(parse_mask_value(std::to_string(v)));
  EXPECT_EQ(MaskClasses(many).count(), 256);
  EXPECT_THAT(message_of([&] { MaskClasses(many, {parse_mask_value("#ff8000")}); }),
              HasSubstr("1 to 255 classes, not 256"));
}

// A picture stored on its side, and a mask drawn on the upright picture.
TEST(Segmentation, AnUprightMaskFitsAPictureOnItsSide) {
  const Scratch scratch;
  for (const char* name : {"images", "masks"}) std::filesystem::create_directory(scratch / name);
  std::filesystem::copy_file(TRESTLE_SOURCE_DIR "/tests/golden/images/orientation_6.jpg",
                             scratch / "images/a.jpg");
  const ImageSize upright = read_image_size(scratch / "images/a.jpg", Orientation::Upright);
  EXPECT_EQ(upright.height, read_image_size(scratch / "images/a.jpg").width);
  write_png(scratch / "masks/a.png", Image::blank(upright.width, upright.height, 1));
  const SegmentationDataset data(scratch / "images", scratch / "masks");
  EXPECT_EQ(data.get(0).input.size(1), upright.height);
}

struct ClassPictures {
  ClassPictures() {
    for (const char* name : {"cats", "dogs"}) std::filesystem::create_directory(scratch / name);
    write_png(scratch / "cats/1.png", gradient(5, 4, 3));
    write_png(scratch / "dogs/1.png", gradient(5, 4, 3));
    write_jpeg(scratch / "dogs/2.jpg", gradient(6, 4, 1));
  }
  Scratch scratch;
};

TEST(Classification, AFolderForEachClass) {
  const ClassPictures pictures;
  const ClassificationDataset data(pictures.scratch.path(), {.width = 4, .height = 4});
  EXPECT_EQ(data.size(), 3);
  EXPECT_THAT(data.classes(), ElementsAre("cats", "dogs"));
  EXPECT_THAT(data.counts(), ElementsAre(1, 2));
  const Sample sample = data.get(2);
  EXPECT_EQ(sample.name, "dogs/2.jpg");
  EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{3, 4, 4}));
  EXPECT_EQ(sample.target.item<std::int64_t>(), 1);
  EXPECT_EQ(sample.target.dim(), 0);
  EXPECT_THROW(data.get(3), UsageError);
}

TEST(Classification, TargetsAreReadWithoutPictures) {
  const ClassPictures pictures;
  const ClassificationDataset data(pictures.scratch.path(), {.width = 4, .height = 4});
  const Sample both = data.get(2), input = data.get_part(2, Part::Input);
  EXPECT_TRUE(input.input.equal(both.input));
  std::filesystem::remove(pictures.scratch / "dogs/2.jpg");
  const Sample target = data.get_part(2, Part::Target);
  EXPECT_EQ(target.target.item<std::int64_t>(), 1);
  EXPECT_EQ(target.name, "dogs/2.jpg");
  EXPECT_FALSE(target.input.defined());
}

TEST(Check, MixedSizesAreReported) {
  const ClassPictures pictures;
  CheckReport report;
  check_examples(ClassificationDataset(pictures.scratch.path()), 0, report);
  EXPECT_EQ(report.count, 3);
  EXPECT_THAT(report.sizes, ElementsAre(Pair("5 x 4 x 3", 2), Pair("6 x 4 x 3", 1)));
  EXPECT_THAT(report.problems,
              ElementsAre(AllOf(HasSubstr("1 of 6 x 4 x 3 (dogs/2.jpg)"),
                                HasSubstr("most are 5 x 4 x 3"), HasSubstr("image_width"))));
  report = {};
  check_examples(ClassificationDataset(pictures.scratch.path(), {.width = 4, .height = 4}), 0,
                 report);
  EXPECT_THAT(report.problems, IsEmpty());
}

TEST(Check, ReportsEveryInvalidFileAndClass) {
  const ClassPictures pictures;
  write_file(pictures.scratch / "cats/2.png", "not a picture");
  write_file(pictures.scratch / "dogs/3.png", "");
  CheckReport report;
  std::int64_t steps = 0;
  check_examples(ClassificationDataset(pictures.scratch.path(), {.width = 4, .height = 4}), 1,
                 report, [&](std::int64_t done, std::int64_t all) {
                   EXPECT_EQ(done, ++steps);
                   EXPECT_EQ(all, 5);
                 });
  EXPECT_EQ(report.count, 1);
  EXPECT_THAT(report.problems,
              testing::UnorderedElementsAre(HasSubstr("cats/2.png"), HasSubstr("dogs/3.png"),
                                            HasSubstr("dogs/1.png: its target is class 1"),
                                            HasSubstr("dogs/2.jpg: its target is class 1")));
}

TEST(Picture, KindsThatAreNotReadAreNamed) {
  const Scratch scratch;
  const auto message = [&](std::string_view bytes) {
    write_file(scratch / "a.bin", bytes);
    return message_of<FormatError>([&] { read_image(scratch / "a.bin"); });
  };
  EXPECT_THAT(message("BM\x46"),
              AllOf(HasSubstr("a BMP picture, a kind that is not read"), HasSubstr("convert it")));
  EXPECT_THAT(message("RIFF1234WEBPVP8 "), HasSubstr("a WebP picture"));
  EXPECT_THAT(message(std::string_view("II*\0....", 8)), HasSubstr("a TIFF picture"));
  EXPECT_THAT(message(std::string_view("\0\0\0\x1c"
                                       "ftypavif....",
                                       16)),
              HasSubstr("an AVIF picture"));
  EXPECT_THAT(message("RIFF"), HasSubstr("not a picture file"));
  EXPECT_THAT(message(""), HasSubstr("the file is empty"));
}

// Inputs and targets of tensors.
struct Rows : Dataset {
  std::vector<Sample> samples;
  std::int64_t size() const override { return static_cast<std::int64_t>(samples.size()); }
  Sample get(std::int64_t i) const override { return samples[static_cast<std::size_t>(i)]; }
};

TEST(Check, ReportsValuesThatNoTrainingTakes) {
  const at::Tensor good = at::zeros({2}), nan = at::full({2}, NAN);
  const auto class_id = [](std::int64_t id) { return at::scalar_tensor(id, at::kLong); };
  Rows rows;
  rows.samples = {{good, class_id(0), "0"},
                  {nan, class_id(1), "1"},
                  {good, class_id(-1), "2"},
                  {good, class_id(-100), "3"},
                  {good, class_id(3), "4"}};
  CheckReport report;
  check_examples(rows, 3, report);
  EXPECT_EQ(report.count, 2) << "a target of -100 has no class";
  EXPECT_THAT(report.problems,
              ElementsAre(HasSubstr("1: its input has values that are infinite or NaN"),
                          HasSubstr("2: its target is class -1, but classes count from 0"),
                          HasSubstr("4: its target is class 3, but the classes are 0 to 2")));
  report = {};
  check_examples(rows, 0, report);
  EXPECT_THAT(report.problems, SizeIs(1)) << "targets may be any numbers";
}

}  // namespace
}  // namespace trestle::data
