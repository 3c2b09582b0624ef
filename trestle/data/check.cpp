#include "trestle/data/check.h"

#include <ATen/Functions.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

// "48 x 32 x 3": pictures with the width first.
std::string size_in_words(const at::Tensor& input) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  if (sizes.size() == 3) sizes = {sizes[2], sizes[1], sizes[0]};
  return sizes.empty() ? "1 number" : join(sizes, " x ");
}

void check_target(const Sample& sample, std::int64_t classes) {
  if (classes <= 0 || sample.target.scalar_type() != at::kLong || sample.target.numel() == 0)
    return;
  const auto worst = sample.target.max().item<std::int64_t>();
  if (worst >= classes)
    throw FormatError(text(sample.name, ": its target is class ", worst,
                           ", but the classes are 0 to ", classes - 1));
}

}  // namespace

void check_examples(const Dataset& dataset, std::int64_t classes, CheckReport& report,
                    const CheckProgress& progress) {
  std::map<std::string, std::string> first_of_size;  // size -> name of its first example
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    try {
      const Sample sample = dataset.get(i);
      check_target(sample, classes);
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
