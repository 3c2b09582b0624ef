#include "trestle/data/files/check.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/carvana_files.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/mnist_files.h"

namespace trestle::data {
namespace {

std::string size_text(int width, int height, int channels) {
  return text(width, " x ", height, " x ", channels);
}

std::optional<Image> read_or_note(const std::filesystem::path& path, Palette palette,
                                  std::vector<std::string>& problems) {
  try {
    return read_image(path, {.palette = palette});
  } catch (const Error& error) {
    problems.emplace_back(error.what());
    return std::nullopt;
  }
}

void check_pair(const CarvanaPair& pair, int classes, CheckReport& report) {
  const auto image = read_or_note(pair.image, Palette::Colours, report.problems);
  const auto mask = read_or_note(pair.mask, Palette::Indices, report.problems);
  if (!image || !mask) return;
  const std::size_t before = report.problems.size();
  auto note = [&](const std::filesystem::path& file, const std::string& what) {
    report.problems.push_back(text(file.string(), ": ", what));
  };
  if (image->channels != 3) {
    note(pair.image, text("the image has ", image->channels, " channels instead of 3"));
  }
  if (image->width != mask->width || image->height != mask->height) {
    note(pair.mask, text("the mask is ", mask->width, " x ", mask->height, " pixels, the image ",
                         image->width, " x ", image->height));
  }
  if (mask->channels != 1) {
    note(pair.mask, text("the mask has ", mask->channels, " channels instead of 1"));
  } else if (const int worst = std::ranges::max(mask->pixels); worst >= classes) {
    note(pair.mask, text("the mask has the value ", worst, ": class ids are 0 to ", classes - 1));
  }
  if (report.problems.size() > before) return;
  ++report.count;
  ++report.sizes[size_text(image->width, image->height, image->channels)];
}

}  // namespace

CheckReport check_carvana(const std::filesystem::path& images_folder,
                          const std::filesystem::path& masks_folder, int classes,
                          const CheckProgress& progress) {
  CheckReport report;
  CarvanaListing listing;
  try {
    listing = list_carvana(images_folder, masks_folder);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
    return report;
  }
  report.problems = std::move(listing.problems);
  std::int64_t done = 0;
  for (const CarvanaPair& pair : listing.pairs) {
    check_pair(pair, classes, report);
    if (progress) progress(++done, static_cast<std::int64_t>(listing.pairs.size()));
  }
  return report;
}

CheckReport check_mnist(const std::filesystem::path& folder) {
  CheckReport report;
  for (const MnistPart part : {MnistPart::Train, MnistPart::Test}) {
    try {
      const MnistArrays arrays = read_mnist(folder, part);
      report.count += arrays.images.count;
      report.sizes[size_text(arrays.images.columns, arrays.images.rows, 1)] += arrays.images.count;
    } catch (const Error& error) {
      if (std::ranges::find(report.problems, error.what()) == report.problems.end()) {
        report.problems.emplace_back(error.what());
      }
    }
  }
  if (report.sizes.size() > 1) {
    report.problems.push_back(
        text(folder.string(), ": the two parts have pictures of different sizes"));
  }
  return report;
}

}  // namespace trestle::data
