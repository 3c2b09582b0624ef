#include "trestle/train/predict/predictor.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/listing.h"
#include "trestle/data/segmentation.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/predict/output_folder.h"
#include "trestle/train/predict/run_weights.h"
#include "trestle/train/predict/volume_predictor.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/setup.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

constexpr const char* table_name = "predictions.csv";

// <out>/<stem>_mask.png. Two images with one stem ("a.jpg", "a.png"; then "a.jpg.png" too) keep
// their whole names.
std::vector<fs::path> mask_files(const std::vector<fs::path>& images, const fs::path& out) {
  std::vector<std::string> stems;
  for (const fs::path& image : images) stems.push_back(image.stem().string());
  std::vector<fs::path> masks;
  for (const std::string& name : distinct_names(images, std::move(stems)))
    masks.push_back(out / (name + "_mask.png"));
  return masks;
}

std::vector<fs::path> find_images(const fs::path& images) {
  if (fs::is_regular_file(images)) return {images};
  if (!fs::is_directory(images))
    throw UsageError(text(images.string(), ": no such folder of images"));
  std::vector<fs::path> found = data::files_of(images);
  if (found.empty()) throw UsageError(text(images.string(), ": no images in this folder"));
  return found;
}

// Files of `out` that would get a second one with their name: "a_mask.gif" beside "a_mask.png", so
// that a data set would find two masks for an image.
std::vector<fs::path> namesakes(const std::vector<fs::path>& masks, const fs::path& out) {
  std::vector<fs::path> found;
  if (!fs::is_directory(out)) return found;
  std::set<fs::path> stems, names;
  for (const fs::path& mask : masks) stems.insert(mask.stem()), names.insert(mask.filename());
  for (const fs::path& file : data::files_of(out))
    if (stems.contains(file.stem()) && !names.contains(file.filename())) found.push_back(file);
  return found;
}

fs::path write_mask(const fs::path& mask, const fs::path& image, const at::Tensor& output) {
  const std::int64_t white = 255 / std::max<std::int64_t>(output.size(1) - 1, 1);
  const data::ImageSize size = data::read_image_size(image, data::Orientation::Upright);
  data::write_png(mask, data::mask_to_image(output.argmax(1)[0] * white, size.width, size.height));
  return mask;
}

// One call of predict() after the images were listed.
class ImagePredictor {
 public:
  ImagePredictor(const PredictOptions& options, RunWeights weights)
      : options_(options),
        weights_(std::move(weights)),
        set_(find_data_set(weights_.recipe.data.name, options.user_parts)) {
    if (!set_.picture)
      throw UsageError(text("this run was trained on '", set_.name, "', which are not image files"),
                       {.hint = "`trestle evaluate` evaluates it on other data of that kind."});
    const bool own = options.user_parts.data_sets.contains(set_.name);
    if (options.top_k > 1 && set_.predicts == Predicts::Mask && !own)
      throw UsageError(text("'top_k' has no effect for '", set_.name, "', which has masks"),
                       {.hint = "Leave it out."});
    if (set_.class_names) class_names_ = set_.class_names(weights_.recipe);
    if (!options.devices.empty()) weights_.recipe.devices.use = options.devices;
    images_ = find_images(options.images);
    refuse_folder_of_images(options.images, options.out);
    masks_ = mask_files(images_, options.out);
    std::vector<fs::path> files;  // the output of a program's own data set decides which
    if (own || set_.predicts == Predicts::Mask) {
      files = namesakes(masks_, options.out);
      files.insert(files.end(), masks_.begin(), masks_.end());
    }
    if (own || set_.predicts == Predicts::Class) files.push_back(options.out / table_name);
    refuse_replacing(files, options.overwrite, "--out");
    devices_ = open_devices(weights_.recipe);
    model_ = make_model(weights_.recipe, options.models);
  }

  PredictResult run() {
    for (std::size_t at = 0; at < images_.size(); ++at) {
      try {
        add(at);
      } catch (const UsageError& error) {  // too small a picture, for example
        if (picture_.defined() && !pipeline_) throw;
        problem(text(picture_.defined() ? images_[at].string() + ": " : "", error.what()));
      } catch (const Error& error) {  // of reading the picture: else of the weights, of writing
        if (picture_.defined()) throw;
        problem(error.what());
      }
      if (options_.progress)
        options_.progress(static_cast<std::int64_t>(at) + 1,
                          static_cast<std::int64_t>(images_.size()));
    }
    if (!result_.classes.empty()) {
      make_folder(options_.out);
      result_.table = options_.out / table_name;
      write_file(result_.table, to_csv(result_.images, result_.classes));
    }
    return std::move(result_);
  }

 private:
  static void make_folder(const fs::path& out) {
    std::error_code error;
    fs::create_directories(out, error);
    if (error) throw FileError(text("cannot be made: ", error.message()), {.file = out.string()});
  }

  void problem(const std::string& words) { result_.problems.push_back(words); }

  void add(std::size_t at) {
    picture_ = at::Tensor();
    picture_ = data::load_picture(images_[at], set_.picture(weights_.recipe)).unsqueeze(0);
    if (!pipeline_) pipeline_ = make_trained_pipeline(weights_, model_, devices_, picture_);
    const at::NoGradGuard no_grad;
    const at::Tensor output = with_inputs_named(
        weights_.recipe, picture_, [&] { return pipeline_->evaluate(picture_).to(at::kCPU); });
    if (!at::isfinite(output).all().item<bool>())
      return problem(
          text(images_[at].string(), ": the model's output has values that are infinite or NaN"));
    if (output.dim() == 4) {
      make_folder(options_.out);
      result_.masks.push_back(write_mask(masks_[at], images_[at], output));
    } else if (output.dim() == 2) {
      result_.classes.push_back(most_probable(output[0], class_names_, options_.top_k));
    } else {
      throw UsageError(text("the model gives ", output.sizes(),
                            " for an image, which is neither a mask nor a class"));
    }
    result_.images.push_back(images_[at]);
  }

  const PredictOptions& options_;
  RunWeights weights_;
  DataSet set_;
  std::vector<std::string> class_names_;
  std::vector<fs::path> images_, masks_;
  std::vector<Device> devices_;
  nn::Layers model_;
  std::unique_ptr<Pipeline> pipeline_;
  at::Tensor picture_;
  PredictResult result_;
};

// The windows of a prediction may differ from those of the run's recipe. Images have none.
void change_windows(const PredictOptions& options, const DataSet& set, recipe::Recipe* recipe) {
  for (const auto& [name, value] : options.changes) {
    recipe::set_field(*recipe, name, value);  // refuses what is no field
    const recipe::Field& field = *recipe::find_field(name);
    const std::string key = text("'", field.key, "' in [", field.section, "]");
    if (field.name() != "data.overlap" && field.name() != "data.blend")
      throw UsageError(text(key, " cannot be changed for a prediction"),
                       {.hint = "Only 'overlap' and 'blend' of volumes can be."});
    if (!set.volume)
      throw UsageError(text(key, " has no effect for '", set.name,
                            "': only volumes are predicted in windows that overlap"),
                       {.hint = "Leave it out."});
  }
}

}  // namespace

PredictResult predict(const PredictOptions& options) {
  const Stopwatch watch;
  if (options.top_k < 1)
    throw UsageError(text("top_k is ", options.top_k, ", and must be 1 or more"));
  RunWeights weights = find_run_weights(options.run, options.checkpoint);
  const DataSet set = find_data_set(weights.recipe.data.name, options.user_parts);
  change_windows(options, set, &weights.recipe);
  PredictResult result = set.volume ? predict_volumes(options, std::move(weights), set)
                                    : ImagePredictor(options, std::move(weights)).run();
  result.seconds = watch.seconds();
  return result;
}

}  // namespace trestle::train
