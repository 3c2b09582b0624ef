#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

// The predicted classes of images as a table.
namespace trestle::train {

struct PredictedClass {
  std::int64_t id = 0;
  std::string name;        // its number if it has no name
  double probability = 0;  // soft-max of the model's scores
};

using PredictedClasses = std::vector<PredictedClass>;  // the most probable first

// The `count` most probable of one image's scores [classes], or all of them if they are fewer.
PredictedClasses most_probable(const at::Tensor& scores, const std::vector<std::string>& names,
                               int count);

// A header, and a line for each image: its name without folder, then its classes:
//
//     file,class,probability,class_2,probability_2
//     a.jpg,rose,0.930412,daisy,0.051970
//
// Commas, quotation marks and line breaks in names are quoted as RFC 4180 has it.
std::string to_csv(const std::vector<std::filesystem::path>& images,
                   const std::vector<PredictedClasses>& classes);

}  // namespace trestle::train
