#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/data/check.h"
#include "trestle/data/dataset.h"
#include "trestle/data/picture.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/additions.h"

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
  Examples validation;       // may be empty
  std::int64_t classes = 0;  // that the targets tell apart; 0 = not known
};

// What `trestle data synthesize` is asked for. `out` must not be there, or be empty.
struct Synthesis {
  std::filesystem::path out;
  std::int64_t count = 0;
  int width = 0, height = 0;  // of pictures; 0 = the data set's own size, the only one of digits
  std::uint64_t seed = 42;
  std::function<void(std::int64_t, std::int64_t)> progress = {};  // called with (done, all)
};

// What a recipe with `synthesize` trains on where its data are missing.
struct StandIn {
  Synthesis wanted;           // in a folder of its own, beside where the data would be
  std::string what;           // what the folder's marker says of such data
  recipe::Recipe::Data data;  // the recipe's, with its paths there
};

struct DataSet {
  std::string name;     // what [data] name says
  std::string summary;  // one line
  std::string loss;     // of a recipe that names none
  std::string metric;   // of a recipe that names none
  Predicts predicts;
  // The keys of [data] that say where it lies; all are needed. None: data that lie nowhere.
  std::vector<std::string> paths;
  std::vector<std::string> keys = {};  // other keys of [data] that say how it is read
  // Whether [data] `key` says something of it.
  bool reads(const std::string& key) const;
  // Where a package of the system puts it: stands for a path that the recipe leaves out.
  std::string usual_place = {};

  // Sizes of an example as the model gets it, without its batch, where no data are there to look at.
  std::function<std::vector<std::int64_t>(const recipe::Recipe&)> usual_input = {};
  // How an image file becomes an input of the model; null for data that are no image files.
  std::function<data::PictureOptions(const recipe::Recipe&)> picture = {};
  // What class 0, 1, ... is called, where that is known.
  std::function<std::vector<std::string>(const recipe::Recipe&)> class_names = {};
  // Opens what the recipe names. Throws UsageError for missing folders, FormatError for bad files.
  std::function<OpenedData(const recipe::Recipe&)> open;
  // The recipe's [data] with what the files alone can say filled in, so that a resumed run need not
  // look again; notes what it found. Null where there is nothing of the kind.
  std::function<recipe::Recipe::Data(const recipe::Recipe&, Progress&)> fill_in = {};
  // Writes synthetic examples in the data set's own files and formats; says what it wrote. Throws
  // UsageError for what cannot be made. Null where there is nothing of the kind.
  std::function<std::string(const Synthesis&)> synthesize = {};
  // For a recipe with `synthesize`; null as above.
  std::function<StandIn(const recipe::Recipe&)> stand_in = {};
  // Reads every file that the recipe names; never throws for what is wrong with them. Null: opens
  // the data and reads every example (check_data).
  std::function<data::CheckReport(const recipe::Recipe&, const data::CheckProgress&)> check = {};
};

// One entry for each file of data_sets/, sorted by name.
const std::vector<DataSet>& data_sets();

// From the table or of the program's own. Throws UsageError for another name, with the nearest.
DataSet find_data_set(std::string_view name, const Additions& own = {});

// What is wrong with the recipe's [data] before any file is looked at: no name, a path left out.
std::vector<std::string> problems_of_data(const recipe::Recipe& recipe, const Additions& own = {});

// "arrays, carvana, ..."
std::string data_set_names(const Additions& own = {});

// `trestle data check` of the recipe's data.
data::CheckReport check_data(const recipe::Recipe& recipe, const data::CheckProgress& progress,
                             const Additions& own = {});

// How the recipe has image files read: 3 channels where [model] says nothing of it.
data::PictureOptions picture_options(const recipe::Recipe& recipe);

// What the recipe's keys of `set.paths` say, in their order, or the usual place.
std::vector<std::filesystem::path> data_paths(const DataSet& set, const recipe::Recipe& recipe);

}  // namespace trestle::train
