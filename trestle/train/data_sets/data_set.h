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
#include "trestle/data/sliding_window.h"
#include "trestle/data/volumes.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"

// The table of data sets that a recipe's [data] can name. Recipes, `trestle data`, --help and the
// documents use it. trestle/data turns the files into tensors.
namespace trestle::train {

class Progress;

// The prediction of a model of the data set for one example.
enum class Predicts {
  Mask,   // a class for each pixel or voxel: dice, pictures of masks, `trestle predict`
  Class,  // one class: accuracy, pictures of examples
  Token,  // the next token: perplexity, samples of text
};

// Some of a data set's examples, by their numbers.
struct Examples {
  std::shared_ptr<const data::Dataset> dataset;
  std::vector<std::int64_t> indices;
};

struct OpenedData {
  Examples training;
  Examples validation;       // may be empty
  std::int64_t classes = 0;  // in the targets; 0 = not known
  // All examples as an evaluation reads them, where training reads them in another way.
  Examples everything = {};
  std::vector<std::string> notes = {};  // facts about the data that a run prints at its start
};

// The value of [data] spacing for volumes of different spacings.
inline constexpr const char* any_spacing = "any";

// How a volume's file becomes inputs of the model, and scores become labels.
struct VolumeReading {
  data::VolumeNormalization normalization = data::VolumeNormalization::Volume;
  std::vector<std::int64_t> label_values = {};  // of class 0, 1, ...; empty: class ids
  std::string spacing;                          // as by data::spacing_in_words(), or any_spacing
  data::SlidingWindowOptions windows = {};
};

// The options of `trestle data synthesize`. `out` must not exist, or be empty.
struct Synthesis {
  std::filesystem::path out;
  std::int64_t count = 0;
  int width = 0, height = 0;  // of images; 0 = the data set's own size, the only one for digits
  int depth = 0;              // slices of volumes; 0 = the data set's own number
  std::uint64_t seed = 42;
  std::function<void(std::int64_t, std::int64_t)> progress = {};  // called with (done, all)
};

// The synthetic data that a recipe with `synthesize` trains on where its data are missing.
struct StandIn {
  Synthesis wanted;           // in a folder of its own, beside the place of the data
  std::string what;           // the text of the folder's marker
  recipe::Recipe::Data data;  // the recipe's, with paths in that folder
};

struct DataSet {
  std::string name;     // the value of [data] name
  std::string summary;  // one line
  std::string loss;     // of a recipe that names none
  std::string metric;   // of a recipe that names none
  Predicts predicts;
  // The keys of [data] with its paths; all are needed. Empty for data that are not read from files.
  std::vector<std::string> paths;
  std::vector<std::string> keys = {};  // other keys of [data] that it reads
  // Whether it reads the key of [data].
  bool reads(const std::string& key) const;
  // The folder where a system package installs it, used when the recipe names no path.
  std::string usual_place = {};

  // The sizes of an input without its batch dimension, where there are no data to read them from.
  std::function<std::vector<std::int64_t>(const recipe::Recipe&)> usual_input = {};
  // How an image file becomes an input of the model; null for data that are not image files.
  std::function<data::PictureOptions(const recipe::Recipe&)> picture = {};
  // How a volume's file becomes inputs of the model; null for data that are not volumes.
  std::function<VolumeReading(const recipe::Recipe&)> volume = {};
  // The names of the classes 0, 1, ..., where they are known.
  std::function<std::vector<std::string>(const recipe::Recipe&)> class_names = {};
  // Opens the data of the recipe. Throws UsageError for missing folders, FormatError for bad files.
  std::function<OpenedData(const recipe::Recipe&)> open;
  // The recipe's [data] with values that are read from the files, so that a resumed run need not
  // read them again; notes what it found. Null where no value comes from the files.
  std::function<recipe::Recipe::Data(const recipe::Recipe&, Progress&)> fill_in = {};
  // Writes synthetic examples in the data set's own files and formats, and returns a description of
  // them. Throws UsageError for invalid options. Null where there is no synthesis.
  std::function<std::string(const Synthesis&)> synthesize = {};
  // The stand-in for a recipe with `synthesize`; null as above.
  std::function<StandIn(const recipe::Recipe&)> stand_in = {};
  // Reads every file of the recipe and reports the mistakes; does not throw for them. Null:
  // check_data() opens the data and reads every example.
  std::function<data::CheckReport(const recipe::Recipe&, const data::CheckProgress&)> check = {};
  // `trestle evaluate` on other data than the run's, and a resumed run on its own, which may have
  // changed: throws UsageError if they do not fit the run, which has these weights, a file or a
  // checkpoint in its folder. May be null.
  std::function<void(const recipe::Recipe&, const std::filesystem::path&)> check_weights = {};
};

// One entry for each file of data_sets/, sorted by name.
const std::vector<DataSet>& data_sets();

// A data set of the table or of the program. Throws UsageError, with the nearest name, for another
// one.
DataSet find_data_set(std::string_view name, const UserParts& own = {});

// The mistakes in the recipe's [data] that need no file: no name, a missing path.
std::vector<std::string> problems_of_data(const recipe::Recipe& recipe, const UserParts& own = {});

// "arrays, carvana, ..."
std::string data_set_names(const UserParts& own = {});

// `trestle data check`: reads the recipe's data.
data::CheckReport check_data(const recipe::Recipe& recipe, const data::CheckProgress& progress,
                             const UserParts& own = {});

// The message if the images of `inputs`, [N, C, H, W], do not have the channels that [model] names;
// "" otherwise.
std::string problem_of_channels(const recipe::Recipe& recipe, const at::Tensor& inputs);

// How the recipe reads image files: with 3 channels unless [model] sets them.
data::PictureOptions picture_options(const recipe::Recipe& recipe);

// The values of the recipe's keys in `set.paths`, in their order, or the usual place.
std::vector<std::filesystem::path> data_paths(const DataSet& set, const recipe::Recipe& recipe);
// Whether one of them does not exist yet, or is an empty folder.
bool data_are_missing(const DataSet& set, const recipe::Recipe& recipe);

}  // namespace trestle::train
