#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/data/scratch.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/files/channels.h"
#include "trestle/data/files/exif.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"

namespace trestle::data {
namespace {

using testing::HasSubstr;

const std::filesystem::path golden_images =
    std::filesystem::path(TRESTLE_SOURCE_DIR) / "tests/golden/images";

// Reads the maker's PGM and PPM files.
Image read_pnm(const std::string& name) {
  std::filesystem::path path = golden_images / (name + ".ppm");
  if (!std::filesystem::exists(path)) path.replace_extension(".pgm");
  std::istringstream in(read_file(path));
  std::string kind;
  Image image;
  int most = 0;
  in >> kind >> image.width >> image.height >> most;
  in.get();
  image.channels = kind == "P6" ? 3 : 1;
  image.pixels.assign(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(image.pixels.size(),
            Image::blank(image.width, image.height, image.channels).pixels.size());
  return image;
}

Image gradient(int width, int height, int channels) {
  Image image = Image::blank(width, height, channels);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        image.at(x, y, c) = static_cast<std::uint8_t>(x * 7 + y * 3 * (c + 1));
      }
    }
  }
  return image;
}

class GoldenFile : public testing::TestWithParam<std::string> {};

TEST_P(GoldenFile, DecodesToPillowsSamples) {
  const std::filesystem::path file = GetParam();
  const Image expected = read_pnm(file.stem().string());
  EXPECT_EQ(read_image(golden_images / file), expected);
  const ImageSize size = read_image_size(golden_images / file);
  EXPECT_EQ(size.width, expected.width);
  EXPECT_EQ(size.height, expected.height);
}

INSTANTIATE_TEST_SUITE_P(Image, GoldenFile,
                         testing::Values("rgb_420.jpg", "rgb_422.jpg", "rgb_444.jpg",
                                         "progressive.jpg", "grey_jpeg.jpg", "rgb.png", "grey.png",
                                         "palette.png", "one_bit.png", "mask.gif", "interlaced.gif",
                                         "plain.gif"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(Image, AlphaIsKept) {
  for (const auto& [name, channels] : {std::pair{"rgba", 4}, std::pair{"grey_alpha", 2}}) {
    const Image image = read_image(golden_images / (std::string(name) + ".png"));
    EXPECT_EQ(image.channels, channels);
    const std::string raw = read_file(golden_images / (std::string(name) + ".raw"));
    EXPECT_EQ(std::string(image.pixels.begin(), image.pixels.end()), raw);
  }
}

TEST(Image, PaletteIsConvertedToColours) {
  const Image png = read_image(golden_images / "palette.png", {.palette = Palette::Colours});
  EXPECT_EQ(png.channels, 3);
  const Image gif = read_image(golden_images / "mask.gif", {.palette = Palette::Colours});
  const Image indices = read_image(golden_images / "mask.gif");
  ASSERT_EQ(gif.channels, 3);
  for (int y = 0; y < gif.height; ++y) {
    for (int x = 0; x < gif.width; ++x) {
      for (int c = 0; c < 3; ++c) ASSERT_EQ(gif.at(x, y, c), indices.at(x, y) * 255);
    }
  }
  const Image one_bit = read_image(golden_images / "one_bit.png", {.palette = Palette::Colours});
  EXPECT_EQ(*std::ranges::max_element(one_bit.pixels), 255);
}

TEST(Image, ExifTurnsItUpright) {
  for (const char* name :
       {"orientation_1.jpg", "orientation_2.jpg", "orientation_3.jpg", "orientation_4.jpg",
        "orientation_5.jpg", "orientation_6.jpg", "orientation_7.jpg", "orientation_8.jpg",
        "orientation_6_png.png", "orientation_6_behind.png", "orientation_6_long.jpg"}) {
    const Image expected = read_pnm(std::filesystem::path(name).stem().string());
    EXPECT_EQ(read_image(golden_images / name, {.orientation = Orientation::Upright}), expected)
        << name;
    const ImageSize size = read_image_size(golden_images / name, Orientation::Upright);
    EXPECT_EQ(size.width, expected.width) << name;
    EXPECT_EQ(size.height, expected.height) << name;
    EXPECT_EQ(read_image(golden_images / name).width, 13) << "as it is stored";
  }
}

// Data after the last chunk of a PNG do not belong to it; Pillow and libpng agree.
TEST(Image, ExifAfterTheEndIsIgnored) {
  const Scratch scratch;
  const std::string file = read_file(golden_images / "orientation_6_behind.png");
  constexpr std::size_t end_bytes = 12;
  const std::size_t at = file.find("eXIf") - 4, end = file.size() - end_bytes;
  write_file(scratch / "a.png", file.substr(0, at) + file.substr(end) + file.substr(at, end - at));
  EXPECT_EQ(read_image(scratch / "a.png", {.orientation = Orientation::Upright}).width, 13);
}

TEST(Image, DamagedExifIsIgnored) {
  // A tag of another type, an invalid orientation, a directory outside of the block.
  const std::string good("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0", 22);
  EXPECT_EQ(exif_orientation(good), 6);
  EXPECT_EQ(
      exif_orientation(std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08", 20)), 8);
  for (const auto& [at, byte] :
       {std::pair{12, 2}, std::pair{18, 9}, std::pair{18, 0}, std::pair{7, 127}, std::pair{8, 0},
        std::pair{0, 120}, std::pair{2, 43}}) {
    std::string bad = good;
    bad[static_cast<std::size_t>(at)] = static_cast<char>(byte);
    EXPECT_EQ(exif_orientation(bad), 1) << at;
  }
  for (std::size_t length = 0; length < 20; ++length)
    EXPECT_EQ(exif_orientation(good.substr(0, length)), 1) << length;
}

TEST(Image, ChannelsConvertLikePillows) {
  for (const char* name : {"rgb", "rgba", "grey", "grey_alpha"}) {
    const Image image = read_image(golden_images / (std::string(name) + ".png"));
    EXPECT_EQ(with_channels(image, 1), read_pnm(std::string(name) + "_to_l")) << name;
    EXPECT_EQ(with_channels(image, 3), read_pnm(std::string(name) + "_to_rgb")) << name;
  }
  EXPECT_THROW(with_channels(gradient(4, 4, 3), 4), UsageError);
}

TEST(Image, AVeryLargeImageGivesAHint) {
  const Scratch scratch;
  write_png(scratch / "a.png", Image::blank(300, 200, 1));
  try {
    read_image(scratch / "a.png", {.max_pixels = 50'000});
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("a.png"), HasSubstr("300 x 200 pixels"),
                                             HasSubstr("the limit of 50,000"),
                                             HasSubstr("Make the picture smaller")));
  }
}

TEST(Resize, BitEqualToPillow) {
  std::istringstream lines(read_file(golden_images / "resize.txt"));
  std::string source, filter, result;
  int width = 0, height = 0, cases = 0;
  while (lines >> source >> filter >> width >> height >> result) {
    const Image image = read_image(golden_images / (source + ".png"));
    const Image resized = filter == "nearest" ? resize_nearest(image, width, height)
                                              : resize_bicubic(image, width, height);
    EXPECT_EQ(resized, read_pnm(result)) << result;
    ++cases;
  }
  EXPECT_EQ(cases, 28);
}

TEST(Resize, RejectsEmptySizesAndAlpha) {
  EXPECT_THROW(resize_bicubic(gradient(4, 4, 3), 0, 2), UsageError);
  EXPECT_THROW(resize_nearest(gradient(4, 4, 3), 2, -1), UsageError);
  EXPECT_THROW(resize_nearest(Image{}, 2, 2), UsageError);
  EXPECT_THROW(resize_bicubic(gradient(4, 4, 4), 2, 2), UsageError);
}

TEST(Image, PngRoundTrip) {
  const Scratch scratch;
  for (int channels = 1; channels <= 4; ++channels) {
    const Image image = gradient(19, 7, channels);
    write_png(scratch / "a.png", image);
    EXPECT_EQ(read_image(scratch / "a.png"), image) << channels;
  }
}

// Long runs, and noise, which fills the table of strings many times.
TEST(Image, GifsOfAnyPatternRoundTrip) {
  const Scratch scratch;
  std::uint32_t random = 1;
  for (const int run : {1, 2, 50, 5000}) {
    Image mask = Image::blank(331, 257, 1);
    for (std::size_t i = 0; i < mask.pixels.size(); ++i) {
      if (i % run == 0) random = random * 1664525 + 1013904223;
      mask.pixels[i] = static_cast<std::uint8_t>(random >> 31);
    }
    write_gif_mask(scratch / "m.gif", mask);
    EXPECT_EQ(read_image(scratch / "m.gif"), mask) << run;
  }
}

TEST(Image, GifMaskRoundTrip) {
  const Scratch scratch;
  Image mask = gradient(33, 21, 1);
  for (auto& pixel : mask.pixels) pixel &= 1;
  write_gif_mask(scratch / "m.gif", mask);
  EXPECT_EQ(read_image(scratch / "m.gif"), mask);
  mask.pixels[5] = 2;
  EXPECT_THROW(write_gif_mask(scratch / "m.gif", mask), UsageError);
}

TEST(Image, JpegRoundTripIsClose) {
  const Scratch scratch;
  for (const int channels : {1, 3}) {
    Image image = Image::blank(48, 40, channels);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      image.pixels[i] = static_cast<std::uint8_t>(40 + 150 * i / image.pixels.size());
    }
    write_jpeg(scratch / "a.jpg", image, 95);
    const Image back = read_image(scratch / "a.jpg");
    ASSERT_EQ(back.pixels.size(), image.pixels.size());
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      EXPECT_NEAR(image.pixels[i], back.pixels[i], 6);
    }
  }
}

TEST(Image, WritersRejectUnsupportedImages) {
  const Scratch scratch;
  EXPECT_THROW(write_jpeg(scratch / "a.jpg", gradient(4, 4, 4)), UsageError);
  EXPECT_THROW(write_jpeg(scratch / "a.jpg", gradient(4, 4, 3), 0), UsageError);
  EXPECT_THROW(write_png(scratch / "a.png", Image{}), UsageError);
  Image torn = gradient(4, 4, 3);
  torn.pixels.pop_back();
  EXPECT_THROW(write_png(scratch / "a.png", torn), UsageError);
  EXPECT_THROW(write_png(scratch / "no/such/folder/a.png", gradient(4, 4, 3)), FileError);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

std::string decode_error(std::string_view bytes) {
  try {
    decode_image(bytes, "cars/a.jpg");
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cars/a.jpg"));
    return error.what();
  }
  return "no error";
}

class CutShort : public testing::TestWithParam<std::string> {};

TEST_P(CutShort, GivesAFormatErrorAtEveryLength) {
  const std::string whole = read_file(golden_images / GetParam());
  // A JPEG without its last two bytes, and a PNG or GIF without its trailer, still has all pixels.
  for (std::size_t length = 0; length + 16 < whole.size(); length += 1 + length / 40) {
    EXPECT_NE(decode_error(whole.substr(0, length)), "no error") << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Image, CutShort,
                         testing::Values("rgb_420.jpg", "rgb.png", "palette.png", "interlaced.gif"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(Image, ErrorsNameTheReason) {
  EXPECT_THAT(decode_error(""), HasSubstr("empty"));
  EXPECT_THAT(decode_error("hello"), HasSubstr("not a picture file"));
  std::string jpeg = read_file(golden_images / "rgb_420.jpg");
  EXPECT_THAT(decode_error(jpeg.substr(0, jpeg.size() / 2)), HasSubstr("Premature end"));
  std::string png = read_file(golden_images / "rgb.png");
  EXPECT_THAT(decode_error(png.substr(0, png.size() / 2)), HasSubstr("ends too early"));
  png[png.size() / 2] ^= 1;
  EXPECT_THAT(decode_error(png), HasSubstr("not a readable PNG"));
  EXPECT_THROW(read_image("no/such/picture.jpg"), FileError);
}

TEST(Image, RejectsAbsurdSizesBeforeAllocating) {
  std::string jpeg = read_file(golden_images / "rgb_420.jpg");
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (int i = 5; i < 9; ++i) jpeg[frame + i] = '\xf0';
  EXPECT_THAT(decode_error(jpeg), HasSubstr("61680 x 61680"));
  std::string gif = read_file(golden_images / "mask.gif");
  for (int i = 6; i < 10; ++i) gif[i] = '\xff';
  EXPECT_THAT(decode_error(gif), HasSubstr("65535 x 65535"));
  const std::string small = read_file(golden_images / "rgb.png");
  EXPECT_THROW(decode_image(small, "a.png", {.max_pixels = 800}), FormatError);
  EXPECT_NO_THROW(decode_image(small, "a.png", {.max_pixels = 37 * 23}));
}

}  // namespace
}  // namespace trestle::data
