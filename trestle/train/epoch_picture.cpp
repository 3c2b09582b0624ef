#include "trestle/train/epoch_picture.h"

#include <algorithm>
#include <cstdio>

#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"

namespace trestle::train {
namespace {

std::string with_three_digits(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.3f", value);
  return digits;
}

std::string picture_title(const std::string& run, const EpochReport& report) {
  std::string title = text(run, ", epoch ", report.epoch, " of ", report.epochs);
  if (report.synthetic_data) title += ", synthetic data";
  if (report.metric)
    title += text(", ", report.metric_name, " ", with_three_digits(*report.metric));
  return title;
}

}  // namespace

void EpochPicture::keep(const at::Tensor& inputs, const data::Batch& batch,
                        const at::Tensor& output) {
  constexpr std::int64_t most_examples = 32;
  const std::int64_t rows = std::min(batch.size(), most_examples);
  output_ = output.narrow(0, 0, rows).clone();
  shown_ = data::Batch{inputs.narrow(0, 0, rows).clone(), batch.targets.narrow(0, 0, rows).clone(),
                       batch.names, 0};
}

bool EpochPicture::draw(const std::filesystem::path& file, const Task& task, const std::string& run,
                        const EpochReport& report) {
  if (!shown_) return false;
  const std::optional<data::Image> picture =
      task.picture(*shown_, output_, {.title = picture_title(run, report), .names = shown_->names});
  shown_.reset();
  if (!picture) return false;
  std::filesystem::create_directories(file.parent_path());
  data::write_png(file, *picture);
  return true;
}

}  // namespace trestle::train
