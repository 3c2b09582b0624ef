#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/data/idx.h"
#include "trestle/data/image_file.h"
#include "trestle/data/random.h"

// Damaged files must give a trestle::Error or a whole result, never a crash. TRESTLE_FUZZ_RUNS sets
// how many mutants of each file are tried; sanitizer builds find what a plain run would not notice.
namespace trestle {
namespace {

int runs() {
  const char* set = std::getenv("TRESTLE_FUZZ_RUNS");
  return set == nullptr ? 2000 : std::atoi(set);
}

std::string mutate(std::string bytes, Random& random) {
  const auto changes = 1 + random.below(4);
  for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    // Headers are where the danger is: half of all changes fall there.
    const std::size_t reach =
        random.below(2) == 0 ? std::min<std::size_t>(bytes.size(), 40) : bytes.size();
    const std::size_t at = random.below(reach);
    switch (random.below(7)) {
      case 0:
        bytes[at] = static_cast<char>(random.next());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8));
        break;
      case 2:
        bytes[at] = random.below(2) == 0 ? '\0' : '\xff';
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.erase(at, 1 + random.below(8));
        break;
      case 5:
        bytes.insert(at, bytes.substr(at, 1 + random.below(16)));
        break;
      default:
        bytes.insert(at, 1 + random.below(4), static_cast<char>(random.next()));
    }
  }
  return bytes;
}

struct Outcome {
  int whole = 0;
  int refused = 0;
};

// Anything but a trestle::Error passes on and fails the test.
Outcome fuzz(const std::vector<std::string>& seeds,
             const std::function<void(const std::string&)>& read) {
  Outcome outcome;
  for (std::size_t s = 0; s < seeds.size(); ++s) {
    for (int run = 0; run < runs(); ++run) {
      Random random(keyed_seed(s, run, -1, -1));
      try {
        read(mutate(seeds[s], random));
        ++outcome.whole;
      } catch (const Error&) {
        ++outcome.refused;
      }
    }
  }
  return outcome;
}

class FuzzImage : public testing::TestWithParam<std::string> {};

TEST_P(FuzzImage, DamageGivesAnErrorOrAWholeImage) {
  const std::string seed =
      read_file(std::string(TRESTLE_SOURCE_DIR "/tests/golden/images/") + GetParam());
  for (const Palette palette : {Palette::Indices, Palette::Colours}) {
    const Outcome outcome = fuzz({seed}, [&](const std::string& bytes) {
      const Image image =
          decode_image(bytes, "fuzz", {.palette = palette, .max_pixels = 1'000'000});
      ASSERT_GT(image.width, 0);
      ASSERT_EQ(image.pixels.size(),
                static_cast<std::size_t>(image.width) * image.height * image.channels);
    });
    EXPECT_GT(outcome.refused, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, FuzzImage,
                         testing::Values("rgb_420.jpg", "progressive.jpg", "grey_jpeg.jpg",
                                         "rgb.png", "palette.png", "one_bit.png", "mask.gif",
                                         "interlaced.gif"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name[name.find('.')] = '_';
                           return name;
                         });

TEST(FuzzIdx, DamageGivesAnErrorOrWholeArrays) {
  const std::string images =
      std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03", 16) + "abcdefghijkl";
  const std::string labels = std::string("\0\0\x08\x01\0\0\0\x03", 8) + "abc";
  const Outcome outcome = fuzz({images, labels}, [](const std::string& bytes) {
    if (bytes.size() > 3 && bytes[3] == 1) {
      ASSERT_EQ(parse_idx_labels(bytes, "fuzz").size(), bytes.size() - 8);
      return;
    }
    const IdxImages read = parse_idx_images(bytes, "fuzz");
    ASSERT_EQ(static_cast<std::size_t>(read.count * read.rows * read.columns), read.pixels.size());
    ASSERT_EQ(read.pixels.size(), bytes.size() - 16);
  });
  EXPECT_GT(outcome.refused, 0);
  EXPECT_GT(outcome.whole, 0);
}

}  // namespace
}  // namespace trestle
