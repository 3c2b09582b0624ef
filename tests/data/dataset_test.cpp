#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/data/scratch.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/data/carvana.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/resize.h"
#include "trestle/data/mnist.h"
#include "trestle/data/split.h"
#include "trestle/data/synthetic/synthesize.h"

namespace trestle::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <class E, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(Mnist, ExamplesAreFractionsAndLabels) {
  const Scratch scratch;
  const MnistFiles files = mnist_paths(scratch.path(), MnistPart::Train);
  write_idx_images(files.images, {2, 1, 3, {0, 51, 255, 1, 2, 3}});
  write_idx_labels(files.labels, {7, 3});
  const MnistDataset data(scratch.path(), MnistPart::Train);
  EXPECT_EQ(data.size(), 2);
  const Sample sample = data.get(0);
  EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{1, 1, 3}));
  EXPECT_EQ(sample.input.scalar_type(), at::kFloat);
  EXPECT_EQ(sample.input[0][0][1].item<float>(), 0.2f);
  EXPECT_EQ(sample.input[0][0][2].item<float>(), 1.0f);
  EXPECT_EQ(sample.target.dim(), 0);
  EXPECT_EQ(sample.target.scalar_type(), at::kLong);
  EXPECT_EQ(data.get(1).target.item<std::int64_t>(), 3);
  EXPECT_EQ(data.get(1).name, "1");
  EXPECT_THROW(data.get(2), UsageError);
  EXPECT_THROW(data.get(-1), UsageError);
  EXPECT_THROW(MnistDataset(scratch.path(), MnistPart::Test), UsageError);
}

class Cars : public testing::Test {
 protected:
  void SetUp() override { synthesize_carvana(scratch_.path(), 3, {.width = 59, .height = 40}); }

  CarvanaDataset open(double scale = 1.0) const { return {images_, masks_, {.scale = scale}}; }

  Scratch scratch_;
  std::filesystem::path images_ = scratch_ / "train_hq";
  std::filesystem::path masks_ = scratch_ / "train_masks";
};

TEST_F(Cars, ExamplesHavePillowsPixels) {
  const CarvanaDataset data = open(0.5);
  ASSERT_EQ(data.size(), 3);
  const Sample sample = data.get(1);
  EXPECT_EQ(sample.input.sizes(), (std::vector<std::int64_t>{3, 20, 29}));
  EXPECT_EQ(sample.input.scalar_type(), at::kFloat);
  EXPECT_EQ(sample.target.sizes(), (std::vector<std::int64_t>{20, 29}));
  EXPECT_EQ(sample.target.scalar_type(), at::kLong);
  EXPECT_EQ(sample.name, data.pair(1).id);
  const Image small = resize_bicubic(read_image(data.pair(1).image), 29, 20);
  const Image mask = resize_nearest(read_image(data.pair(1).mask), 29, 20);
  for (int y = 0; y < 20; ++y) {
    for (int x = 0; x < 29; ++x) {
      for (int c = 0; c < 3; ++c) {
        ASSERT_EQ(sample.input[c][y][x].item<float>(), small.at(x, y, c) / 255.0f);
      }
      ASSERT_EQ(sample.target[y][x].item<std::int64_t>(), mask.at(x, y));
    }
  }
  EXPECT_TRUE(load_picture(data.pair(1).image, 0.5).equal(sample.input));
}

TEST_F(Cars, MasksReturnToThePicturesSize) {
  const Sample sample = open().get(0);
  const Image mask = mask_to_image(sample.target, 59, 40);
  EXPECT_EQ(mask, read_image(open().pair(0).mask));
  EXPECT_EQ(mask_to_image(sample.target.to(at::kByte), 118, 80).width, 118);
  EXPECT_THROW(mask_to_image(sample.input, 59, 40), UsageError);
}

TEST_F(Cars, ScaleIsChecked) {
  for (const double scale : {0.0, -1.0, 1.5, std::nan("")})
    EXPECT_THROW(open(scale), UsageError) << scale;
  EXPECT_THAT(message_of<UsageError>([&] { open(0.02).get(0); }), HasSubstr("leaves no pixels"));
}

TEST_F(Cars, AllMissingMasksAreNamedAtOnce) {
  for (int i = 0; i < 7; ++i) {
    write_jpeg(images_ / ("z" + std::to_string(i) + ".jpg"), Image::blank(4, 4, 3));
  }
  EXPECT_THAT(message_of<UsageError>([&] { open(); }),
              AllOf(HasSubstr("7 examples"), HasSubstr("train_hq/z0.jpg (looked for z0_mask.*)"),
                    HasSubstr("z4.jpg"), HasSubstr("and 2 more"), HasSubstr("data check")));
}

TEST_F(Cars, ErrorsNameTheFile) {
  const CarvanaDataset data = open();
  write_gif_mask(data.pair(0).mask, Image::blank(58, 40, 1));
  EXPECT_THAT(message_of<FormatError>([&] { data.get(0); }),
              AllOf(HasSubstr("58 x 40"), HasSubstr("59 x 40"), HasSubstr("_01_mask.gif")));
  std::filesystem::resize_file(data.pair(1).image, 700);
  EXPECT_THAT(message_of<FormatError>([&] { data.get(1); }), HasSubstr("_02.jpg"));
  std::filesystem::remove(data.pair(2).image);
  EXPECT_THAT(message_of<FileError>([&] { data.get(2); }), HasSubstr("_03.jpg"));
  EXPECT_THROW(data.get(3), UsageError);
}

TEST_F(Cars, MaskValuesAreClassIds) {
  const CarvanaDataset data = open();
  Image mask = Image::blank(59, 40, 1);
  mask.pixels[100] = 2;
  std::filesystem::remove(data.pair(0).mask);
  write_png(data.pair(0).mask, mask);  // told apart by its bytes, whatever its name
  EXPECT_THAT(message_of<FormatError>([&] { data.get(0); }), HasSubstr("value 2"));
  const CarvanaDataset three(images_, masks_, {.classes = 3});
  EXPECT_EQ(three.get(0).target.max().item<std::int64_t>(), 2);
}

TEST(Split, IsPythonsRandomSplit) {
  std::istringstream file(read_file(TRESTLE_SOURCE_DIR "/tests/golden/split/random_split.txt"));
  std::string line;
  std::getline(file, line);  // the version
  auto shortened = [](const std::vector<std::int64_t>& all) {
    std::vector<std::int64_t> kept = all;
    if (all.size() > 40) kept.erase(kept.begin() + 20, kept.end() - 20);
    return kept;
  };
  auto numbers = [&] {
    std::getline(file, line);
    std::istringstream in(line);
    return std::vector<std::int64_t>(std::istream_iterator<std::int64_t>(in), {});
  };
  int cases = 0;
  while (std::getline(file, line) && !line.empty()) {
    std::istringstream head(line);
    std::int64_t count = 0;
    double fraction = 0;
    std::uint64_t seed = 0;
    head >> count >> fraction >> seed;
    const Split split = random_split(count, fraction, seed);
    EXPECT_EQ(shortened(split.train), numbers()) << count;
    EXPECT_EQ(shortened(split.validation), numbers()) << count;
    EXPECT_EQ(static_cast<std::int64_t>(split.train.size() + split.validation.size()), count);
    std::getline(file, line);  // empty
    ++cases;
  }
  EXPECT_EQ(cases, 4);
}

TEST(Split, RefusesNonsense) {
  EXPECT_THROW(random_split(10, 1.0, 0), UsageError);
  EXPECT_THROW(random_split(10, -0.1, 0), UsageError);
  EXPECT_THROW(random_split(0, 0.1, 0), UsageError);
  EXPECT_EQ(random_split(3, 0.0, 0).train.size(), 3u);
}

}  // namespace
}  // namespace trestle::data
