#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"
#include "trestle/nn/parameter_slice.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/progress.h"

// Initial weights from the files of `weights` in [model] and `adapter_weights` in [adapters]. Not
// installed.
namespace trestle::train {

// Throws UsageError if a file does not exist, if it has more tokens than the model, and if it has
// fewer and the recipe freezes the tables of the vocabulary; FormatError if it holds no weights.
// Called before any data are read or synthesized.
void check_initial_weights(const recipe::Recipe& recipe);

// A file that the recipe names.
struct InitialFile {
  std::string title;  // "weights" or "adapters"
  std::string path;
  bool strict = true;
  // Those of the model's parameters and buffers that it fills.
  std::function<NamedTensors(const NamedTensors&)> filled;
  // Loads it into these. Language models are also loaded from files of Hugging Face and GGUF.
  // Throws as checkpoint::load_weights().
  std::function<checkpoint::LoadReport(const NamedTensors&, const checkpoint::LoadOptions&)> load;
  // A remark to the user on more that loading changes; may be empty.
  std::string note = {};
};

// In the order of loading; empty if the recipe names none.
// `slices` are those of the rank's parameters (tensor parallelism).
std::vector<InitialFile> initial_files(const recipe::Recipe& recipe,
                                       const nn::ParameterSlices& slices = {});

// A title of a note, as wide as those of the other notes.
std::string title_column(const std::string& title);

// Reports that a file was loaded.
void note_loaded(const InitialFile& file, const checkpoint::LoadReport& report, Progress& progress);

// Loads the files into the model's parameters and buffers and reports the results.
void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress);

}  // namespace trestle::train
