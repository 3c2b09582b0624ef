#include "trestle/view/split_places.h"

#include <algorithm>

#include "trestle/base/text.h"
#include "trestle/view/split_table.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {
namespace {

using SplitTensor = SplitPicture::Tensor;

constexpr double longest = 290;  // side of a matrix
constexpr double table_height = 170;
constexpr double shortest = 4;     // the same
constexpr double strip = 7;        // thickness of a bias or a norm's vector
constexpr double strip_gap = 3;    // before it
constexpr double part_gap = 14;    // between the parts of a fused matrix
constexpr double least_head = 12;  // height of a head that has words beside it
constexpr double shortened_font = 10, sharing_font = 11;

bool is_vector(const SplitTensor& tensor) { return tensor.shape.size() == 1; }

bool is_fused(const SplitTensor& tensor) {
  return tensor.parts.size() > 1 && tensor.dimension == 0 && !is_vector(tensor);
}

double length(std::int64_t size, double scale) {
  return std::clamp(scale * static_cast<double>(size), shortest, longest);
}

class StepLayout {
 public:
  StepLayout(const SplitPicture::Step& step, double scale) : step_(step), scale_(scale) {
    for (const SplitTensor& tensor : step.tensors)
      if (!is_vector(tensor)) matrix(tensor);
    if (places_.boxes.empty()) vectors();
    for (const std::string& words : places_.shortened)
      places_.width = std::max(places_.width, text_width(words, shortened_font));
  }

  StepPlaces take() && { return std::move(places_); }

 private:
  // Each part has the step's vectors along its rows.
  void matrix(const SplitTensor& tensor) {
    const std::size_t count = is_fused(tensor) ? tensor.parts.size() : 1;
    for (std::size_t part = 0; part < count; ++part) {
      if (places_.width > 0) places_.width += part_gap;
      rows(tensor, part, count > 1 ? tensor.parts[part].size : tensor.shape[0]);
    }
    if (count > 1) share(tensor.parts.back());
  }

  // Names a part of a fused matrix, and a matrix beside another one.
  std::string label_of(const SplitTensor& tensor, std::size_t part) const {
    if (is_fused(tensor)) return tensor.parts[part].name;
    const auto matrices = std::ranges::count_if(
        step_.tensors, [](const SplitTensor& one) { return !is_vector(one); });
    return matrices > 1 ? tensor.name : "";
  }

  void rows(const SplitTensor& tensor, std::size_t part, std::int64_t count) {
    const double room = tensor.is_table ? table_height : longest;
    const Box box{places_.width, 0, length(tensor.shape[1], scale_),
                  std::min(length(count, scale_), room)};
    const std::string label = label_of(tensor, part);
    if (!label.empty()) places_.top = 14;
    const double height = scale_ * static_cast<double>(count);
    if (height > room * 1.01)
      places_.shortened.push_back(text(label.empty() ? "" : label + ": ", "height drawn ",
                                       decimal(height / room, 0), " times shorter"));
    places_.boxes.push_back({.tensor = &tensor, .part = part, .box = box, .label = label});
    places_.width += box.width;
    places_.height = std::max(places_.height, box.height);
    for (const SplitTensor& vector : step_.tensors) {
      if (!is_vector(vector) || vector.shape[0] != tensor.shape[0]) continue;
      const Box thin{places_.width + strip_gap, 0, strip, box.height};
      places_.boxes.push_back({.tensor = &vector, .part = part, .box = thin});
      places_.width += strip_gap + strip;
    }
    places_.width = std::max(places_.width, box.x + text_width(label, sharing_font));
  }

  void share(const SplitPicture::Part& last) {
    std::vector<std::string> words = sharing_of(last);
    if (words.empty()) return;
    const double pitch = places_.boxes.back().box.height / static_cast<double>(words.size());
    if (pitch < least_head) return;
    double widest = 0;
    for (const std::string& one : words) widest = std::max(widest, text_width(one, sharing_font));
    places_.sharing = std::move(words);
    places_.head_pitch = pitch;
    places_.sharing_x = places_.width + 4;
    places_.width += 4 + 9 + widest;
  }

  // Vectors without a matrix lie one below the other.
  void vectors() {
    for (const SplitTensor& tensor : step_.tensors) {
      const double y = places_.height > 0 ? places_.height + strip_gap : 0;
      const Box box{0, y, length(tensor.shape[0], scale_), strip};
      places_.boxes.push_back({.tensor = &tensor, .box = box, .along_rows = false});
      places_.width = std::max(places_.width, box.width);
      places_.height = y + strip;
    }
  }

  const SplitPicture::Step& step_;
  double scale_;
  StepPlaces places_;
};

}  // namespace

double split_scale(const SplitPicture& picture) {
  std::int64_t of_matrices = 1, of_tables = 1;
  for (const auto& section : picture.sections)
    for (const auto& step : section.steps)
      for (const SplitTensor& tensor : step.tensors)
        for (std::size_t d = 0; d < std::min<std::size_t>(tensor.shape.size(), 2); ++d) {
          std::int64_t size = tensor.shape[d];
          if (d == 0 && tensor.dimension == 0 && tensor.parts.size() > 1) {
            size = 0;
            for (const auto& part : tensor.parts) size = std::max(size, part.size);
          }
          std::int64_t& most = tensor.is_table && d == 0 ? of_tables : of_matrices;
          most = std::max(most, size);
        }
  return longest / static_cast<double>(of_matrices > 1 ? of_matrices : of_tables);
}

StepPlaces places_of(const SplitPicture::Step& step, double scale) {
  return StepLayout(step, scale).take();
}

}  // namespace trestle::view
