#include "trestle/data/check.h"

#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/segmentation.h"

namespace trestle::data {
namespace {

// "48 x 32 x 3": pictures with the width first.
std::string size_in_words(const at::Tensor& input) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  if (sizes.size() == 3) sizes = {sizes[2], sizes[1], sizes[0]};
  return sizes.empty() ? "1 number" : join(sizes, " x ");
}

void check_finite(const Sample& sample, const char* what, const at::Tensor& values) {
  if (!values.defined() || !values.is_floating_point() || at::isfinite(values).all().item<bool>())
    return;
  throw FormatError(text(sample.name, ": its ", what, " has values that are infinite or NaN"));
}

void check_target(const Sample& sample, std::int64_t classes) {
  if (classes <= 0 || !sample.target.defined() || sample.target.numel() == 0) return;
  if (sample.target.scalar_type() != at::kLong) return;
  const auto worst = sample.target.max().item<std::int64_t>();
  const at::Tensor counted = sample.target.masked_select(sample.target.ne(ignored_target));
  const auto least = counted.numel() == 0 ? 0 : counted.min().item<std::int64_t>();
  if (least < 0)
    throw FormatError(
        text(sample.name, ": its target is class ", least, ", but classes count ", "from 0"));
  if (worst >= classes)
    throw FormatError(text(sample.name, ": its target is class ", worst,
                           ", but the classes are 0 to ", classes - 1));
}

}  // namespace

void check_examples(const Dataset& dataset, std::int64_t classes, CheckReport& report,
                    const CheckProgress& progress, Part part) {
  std::map<std::string, std::string> first_of_size;  // size -> name of its first example
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    try {
      const Sample sample = part == Part::Both ? dataset.get(i) : dataset.get_part(i, part);
      check_finite(sample, "input", sample.input);
      check_finite(sample, "target", sample.target);
      check_target(sample, classes);
      if (classes > 0 && sample.target.defined() && sample.target.scalar_type() == at::kLong) {
        report.targets += sample.target.numel();
        report.ignored += sample.target.eq(ignored_target).sum().item<std::int64_t>();
      }
      const std::string size = size_in_words(sample.input);
      first_of_size.emplace(size, sample.name);
      ++report.sizes[size];
      ++report.count;
    } catch (const std::exception& error) {
      report.problems.emplace_back(error.what());
    }
    if (progress) progress(i + 1, dataset.size());
  }
  std::string usual;
  for (const auto& [size, count] : report.sizes)
    if (usual.empty() || count > report.sizes[usual]) usual = size;
  for (const auto& [size, name] : first_of_size) {
    if (size == usual) continue;
    report.problems.push_back(text(report.sizes[size], " of ", size, " (", name,
                                   "): a batch takes one size, and most are ", usual,
                                   ". Set image_width and image_height in [data]."));
  }
}

}  // namespace trestle::data
