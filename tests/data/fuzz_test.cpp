#include "tests/fuzz/fuzz.h"

#include <string>

#include "trestle/base/files.h"
#include "trestle/data/files/detail/idx.h"
#include "trestle/data/files/image_file.h"

// Damaged files must give a trestle::Error or a complete result.
namespace trestle::data {
namespace {

class FuzzImage : public testing::TestWithParam<std::string> {};

TEST_P(FuzzImage, DamageGivesAnErrorOrACompleteImage) {
  const std::string seed =
      read_file(std::string(TRESTLE_SOURCE_DIR "/tests/golden/images/") + GetParam());
  for (const Palette palette : {Palette::Indices, Palette::Colours}) {
    const auto result = fuzz::run(
        {seed, seed.substr(0, 64)},  // only the start: half of the changes hit the header
        [&](std::string_view bytes) {
          const Image image = decode_image(
              bytes, "fuzz",
              {.palette = palette, .max_pixels = 1'000'000, .orientation = Orientation::Upright});
          ASSERT_GT(image.width, 0);
          ASSERT_EQ(image.pixels.size(),
                    Image::blank(image.width, image.height, image.channels).pixels.size());
        },
        {.iterations = 3000});
    EXPECT_GT(result.refused, 0);
    EXPECT_GT(result.accepted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, FuzzImage,
                         testing::Values("rgb_420.jpg", "progressive.jpg", "grey_jpeg.jpg",
                                         "rgb.png", "palette.png", "one_bit.png", "mask.gif",
                                         "interlaced.gif", "orientation_6.jpg",
                                         "orientation_6_png.png"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name[name.find('.')] = '_';
                           return name;
                         });

TEST(FuzzIdx, DamageGivesAnErrorOrCompleteArrays) {
  const std::string images =
      std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03", 16) + "abcdefghijkl";
  const std::string labels = std::string("\0\0\x08\x01\0\0\0\x03", 8) + "abc";
  const auto of_images = fuzz::run({images, labels}, [](std::string_view bytes) {
    const IdxImages read = parse_idx_images(bytes, "fuzz");
    ASSERT_EQ(static_cast<std::size_t>(read.count * read.rows * read.columns), read.pixels.size());
    ASSERT_EQ(read.pixels.size(), bytes.size() - 16);
  });
  EXPECT_GT(of_images.accepted, 100);
  EXPECT_GT(of_images.refused, 1000);
  const auto of_labels = fuzz::run({labels, images}, [](std::string_view bytes) {
    ASSERT_EQ(parse_idx_labels(bytes, "fuzz").size(), bytes.size() - 8);
  });
  EXPECT_GT(of_labels.accepted, 100);
  EXPECT_GT(of_labels.refused, 1000);
}

TEST(FuzzIdx, DamagedCompressionGivesAnErrorOrCompleteArrays) {
  const std::string packed =
      read_file(TRESTLE_SOURCE_DIR "/tests/golden/mnist/train-images-idx3-ubyte.gz");
  const auto result = fuzz::run({packed}, [](std::string_view bytes) {
    const IdxImages read = parse_idx_images(bytes, "fuzz");
    ASSERT_EQ(static_cast<std::size_t>(read.count * read.rows * read.columns), read.pixels.size());
  });
  EXPECT_GT(result.accepted, 10);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle::data
