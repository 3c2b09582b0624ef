#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/data/dataset.h"
#include "trestle/data/files/check.h"
#include "trestle/recipe/recipe.h"

// The data sets that a recipe's [data] can name: one table. Recipes, `trestle data`, --help and the
// documents go by it. How files become tensors is the business of trestle/data.
namespace trestle::train {

class Progress;

// What a model that learns the data set says of one example.
enum class Predicts {
  Mask,   // a class for each pixel: dice, pictures of masks, `trestle predict`
  Class,  // one class: accuracy, pictures of examples
};

// Some of a data set's examples, by number.
struct Examples {
  std::shared_ptr<const data::Dataset> dataset;
  std::vector<std::int64_t> indices;
};

struct OpenedData {
  Examples training;
  Examples validation;  // may be empty
};

// What `trestle data synthesize` is asked for.
struct Synthesis {
  std::filesystem::path out;
  std::int64_t count = 0;
  int width = 0, height = 0;  // of pictures; 0 = the data set's own size, the only one of digits
  std::uint64_t seed = 42;
  std::function<void(std::int64_t, std::int64_t)> progress = {};  // called with (done, all)
};

struct DataSet {
  std::string name;     // what [data] name says
  std::string summary;  // one line
  std::string loss;     // of a recipe that names none
  std::string metric;   // of a recipe that names none
  Predicts predicts;
  std::vector<std::string> paths;  // the keys of [data] that say where it lies; all are needed

  // Opens what the recipe names. Throws UsageError for missing folders, FormatError for bad files.
  std::function<OpenedData(const recipe::Recipe&)> open;
  // Writes synthetic examples in the data set's own files and formats; says what it wrote. Throws
  // UsageError for what cannot be made.
  std::function<std::string(const Synthesis&)> synthesize;
  // Writes data.synthesize examples where the recipe looks for them, all or nothing, unless
  // something is there already, and notes it before it begins.
  std::function<void(const recipe::Recipe&, Progress&)> synthesize_missing;
  // Reads every file that the recipe names; never throws for what is wrong with them.
  std::function<data::CheckReport(const recipe::Recipe&, const data::CheckProgress&)> check;
};

const std::vector<DataSet>& data_sets();

// Throws UsageError for a name that the table does not have, with the nearest that it has.
const DataSet& find_data_set(std::string_view name);

// What is wrong with the recipe's [data] before any file is looked at: no name, a path left out.
std::vector<std::string> problems_of_data(const recipe::Recipe& recipe);

// "carvana, mnist"
std::string data_set_names();

}  // namespace trestle::train
