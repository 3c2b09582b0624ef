#include "trestle/train/predictor.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/safetensors.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/listing.h"
#include "trestle/data/segmentation.h"
#include "trestle/train/data_set.h"
#include "trestle/train/run_folder.h"
#include "trestle/train/setup.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

struct Weights {
  fs::path file;
  recipe::Recipe recipe;
};

Weights find_weights(const fs::path& run) {
  if (!fs::is_regular_file(run)) {
    const RunFolder folder = open_run_folder(run);
    if (!fs::exists(folder.best()))
      throw UsageError(text(folder.path.string(), ": has no best.safetensors yet"),
                       {.hint = "It appears at the end of the first epoch."});
    return {folder.best(), recipe_of(folder)};
  }
  for (const fs::path& folder : {run.parent_path(), run.parent_path().parent_path()})
    if (fs::exists(folder / "recipe.toml"))
      return {run, recipe::read_recipe(folder / "recipe.toml")};
  throw UsageError(text(
      run.string(), ": there is no recipe.toml beside these weights, so their model is not known"));
}

// <out>/<stem>_mask.png; where two would be one file ("a.jpg", "a.png"; then "a.jpg.png" too), their
// whole names instead.
std::vector<fs::path> mask_files(const std::vector<fs::path>& images, const fs::path& out) {
  std::vector<std::string> names;
  for (const fs::path& image : images) names.push_back(image.stem().string());
  for (bool again = true; std::exchange(again, false);) {
    std::map<std::string, int> times;
    for (const std::string& name : names) ++times[name];
    for (std::size_t i = 0; i < images.size(); ++i) {
      const std::string whole = images[i].filename().string();
      if (times[names[i]] < 2 || names[i] == whole) continue;
      names[i] = whole;
      again = true;
    }
  }
  std::vector<fs::path> masks;
  for (const std::string& name : names) masks.push_back(out / (name + "_mask.png"));
  return masks;
}

// Without the masks of an earlier prediction, where those are written beside the images.
std::vector<fs::path> find_images(const fs::path& images, const fs::path& out) {
  if (fs::is_regular_file(images)) return {images};
  if (!fs::is_directory(images))
    throw UsageError(text(images.string(), ": no such folder of images"));
  std::vector<fs::path> found = data::files_of(images);
  std::error_code not_there;
  if (fs::equivalent(images, out, not_there)) {
    std::set<fs::path> masks;
    for (const fs::path& mask : mask_files(found, out)) masks.insert(mask.filename());
    std::erase_if(found, [&](const fs::path& path) { return masks.contains(path.filename()); });
  }
  if (found.empty()) throw UsageError(text(images.string(), ": no images in this folder"));
  return found;
}

fs::path write_mask(const fs::path& mask, const fs::path& image, const at::Tensor& computed) {
  const at::Tensor output = computed.to(at::kCPU);
  if (output.dim() != 4)
    throw UsageError(text("the model gives ", output.sizes(), " for an image, which is no mask"));
  const std::int64_t white = 255 / std::max<std::int64_t>(output.size(1) - 1, 1);
  const data::ImageSize size = data::read_image_size(image, data::Orientation::Upright);
  data::write_png(mask, data::mask_to_image(output.argmax(1)[0] * white, size.width, size.height));
  return mask;
}

}  // namespace

PredictResult predict(const PredictOptions& options) {
  const Stopwatch watch;
  Weights weights = find_weights(options.run);
  if (find_data_set(weights.recipe.data.name, options.additions).predicts != Predicts::Mask)
    throw UsageError(
        text("this run learnt '", weights.recipe.data.name, "', which has no masks to predict"));
  if (!options.devices.empty()) weights.recipe.devices.use = options.devices;
  const std::vector<fs::path> images = find_images(options.images, options.out);
  const std::vector<fs::path> masks = mask_files(images, options.out);
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error)
    throw FileError(text("cannot be made: ", error.message()), {.file = options.out.string()});

  const std::vector<Device> devices = open_devices(weights.recipe);
  // The run's cut is for the run's devices.
  if (devices.size() != 1 && devices.size() != weights.recipe.pipeline.balance.size())
    weights.recipe.pipeline.balance.clear();
  const nn::Layers model = make_model(weights.recipe, options.models);
  const data::PictureOptions picture_is = picture_options(weights.recipe);
  PredictResult result;
  // Nothing where the picture cannot be read.
  const auto load = [&](const fs::path& path) -> std::optional<at::Tensor> {
    try {
      return data::load_picture(path, picture_is).unsqueeze(0);
    } catch (const Error& error) {
      result.problems.emplace_back(error.what());
    }
    return std::nullopt;
  };
  std::size_t at = 0;
  std::optional<at::Tensor> picture = load(images[at]);
  while (!picture && ++at < images.size()) picture = load(images[at]);
  if (!picture) return result;
  const auto pipeline = with_inputs_named(weights.recipe, *picture, [&] {
    return make_pipeline(weights.recipe, model, devices, {*picture});
  });
  NamedTensors into = pipeline->named_parameters();
  for (auto& buffer : pipeline->named_buffers()) into.push_back(buffer);
  checkpoint::copy_into(checkpoint::read_tensors(weights.file).tensors, into,
                        weights.file.string());

  const at::NoGradGuard no_grad;
  for (; at < images.size(); picture.reset(), ++at) {
    if (!picture) picture = load(images[at]);
    if (picture) {
      try {
        const at::Tensor output = with_inputs_named(weights.recipe, *picture,
                                                    [&] { return pipeline->evaluate(*picture); });
        result.masks.push_back(write_mask(masks[at], images[at], output));
      } catch (const UsageError& error) {  // too small a picture, for example
        result.problems.push_back(images[at].string() + ": " + error.what());
      }
    }
    if (options.progress)
      options.progress(static_cast<std::int64_t>(at) + 1, static_cast<std::int64_t>(images.size()));
  }
  result.seconds = watch.seconds();
  return result;
}

}  // namespace trestle::train
