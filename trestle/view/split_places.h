#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trestle/view/split_picture.h"

// The places of the tensors of a step in a picture of a split. Not installed.
namespace trestle::view {

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

// A tensor, or one part of a fused one.
struct TensorPlace {
  const SplitPicture::Tensor* tensor = nullptr;
  std::size_t part = 0;
  Box box = {};
  std::string label = {};  // above the box
  bool along_rows = true;  // the tensor's first dimension runs down
};

// From the upper left corner of the step's drawing, in pixels.
struct StepPlaces {
  std::vector<TensorPlace> boxes = {};
  double width = 0, height = 0;
  double top = 0;                           // the height of the labels, above `boxes`
  std::vector<std::string> shortened = {};  // below the boxes: "height drawn 21 times shorter"
  // Right of the boxes, with the same height for each head: sharing_of() the last part. Empty where
  // there is no room.
  std::vector<std::string> sharing = {};
  double sharing_x = 0, head_pitch = 0;
};

// Pixels for each row and column, so that no matrix but a table is too long. The parts of a fused
// matrix stand side by side, so each of them counts alone.
double split_scale(const SplitPicture& picture);

StepPlaces places_of(const SplitPicture::Step& step, double scale);

}  // namespace trestle::view
