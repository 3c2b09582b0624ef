#include "trestle/train/predict/volume_predictor.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/listing.h"
#include "trestle/data/sliding_window.h"
#include "trestle/data/volumes.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/predict/output_folder.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/setup.h"
#include "trestle/train/volume_picture.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

fs::path mask_file(const fs::path& volume, const fs::path& out) {
  return out / text(data::volume_id(volume), "_mask", data::volume_ending(volume));
}

// One for each volume: "s0.nii" and "s0.nii.gz" have one id.
std::vector<fs::path> slices_files(const std::vector<fs::path>& volumes, const fs::path& out) {
  std::vector<std::string> ids;
  for (const fs::path& volume : volumes) ids.push_back(data::volume_id(volume));
  std::vector<fs::path> slices;
  for (const std::string& name : distinct_names(volumes, std::move(ids)))
    slices.push_back(out / (name + "_slices.png"));
  return slices;
}

std::vector<fs::path> find_volumes(const fs::path& volumes) {
  if (fs::is_regular_file(volumes)) return {volumes};
  if (!fs::is_directory(volumes))
    throw UsageError(text(volumes.string(), ": no such folder of volumes"));
  std::vector<fs::path> found = data::files_of(volumes);
  if (found.empty()) throw UsageError(text(volumes.string(), ": no volumes in this folder"));
  return found;
}

// The label of each class id, in the volume's own space.
data::Volume labels_of(const at::Tensor& ids, const data::Volume& volume,
                       const std::vector<std::int64_t>& label_values) {
  data::Volume labels{static_cast<const data::VolumeInfo&>(volume)};
  labels.channels = 1;
  const at::Tensor own = ids.contiguous();
  const std::int64_t* id = own.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < own.numel(); ++i) {
    const auto at = static_cast<std::size_t>(id[i]);
    labels.values.push_back(
        static_cast<float>(at < label_values.size() ? label_values[at] : id[i]));
  }
  return labels;
}

class VolumePredictor {
 public:
  VolumePredictor(const PredictOptions& options, RunWeights weights, const DataSet& set)
      : options_(options), weights_(std::move(weights)), reading_(set.volume(weights_.recipe)) {
    if (options.top_k > 1)
      throw UsageError(text("'top_k' has no effect for '", set.name, "', which has masks"),
                       {.hint = "Leave it out."});
    if (!options.devices.empty()) weights_.recipe.devices.use = options.devices;
    volumes_ = find_volumes(options.images);
    refuse_folder_of_images(options.images, options.out);
    slices_ = slices_files(volumes_, options.out);
    std::vector<fs::path> files = slices_;
    for (const fs::path& volume : volumes_) files.push_back(mask_file(volume, options.out));
    refuse_replacing(files, options.overwrite, "--out");
    devices_ = open_devices(weights_.recipe);
    model_ = make_model(weights_.recipe, options.models);
  }

  PredictResult run() {
    std::error_code error;
    fs::create_directories(options_.out, error);
    if (error)
      throw FileError(text("cannot be made: ", error.message()), {.file = options_.out.string()});
    for (std::size_t at = 0; at < volumes_.size(); ++at) {
      if (const std::optional<data::Volume> volume = read(volumes_[at])) {
        try {
          predict(volumes_[at], *volume, slices_[at]);
        } catch (const UsageError& error) {  // other channels than the model's, for example
          if (!pipeline_) throw;
          result_.problems.push_back(text(volumes_[at].string(), ": ", error.what()));
        }
      }
      if (options_.progress)
        options_.progress(static_cast<std::int64_t>(at) + 1, std::ssize(volumes_));
    }
    return std::move(result_);
  }

 private:
  // Nothing for a volume that cannot be predicted, which becomes a problem of the result.
  std::optional<data::Volume> read(const fs::path& file) {
    try {
      data::Volume volume = data::read_volume(file);
      check_volume(file, volume);
      return volume;
    } catch (const Error& error) {
      result_.problems.emplace_back(error.what());
      return std::nullopt;
    }
  }

  void check_volume(const fs::path& file, const data::Volume& volume) const {
    if (reading_.spacing != any_spacing && !data::is_spacing(reading_.spacing, volume))
      throw FormatError(text("the spacing of the voxels is ", data::spacing_in_words(volume),
                             ", and the run was trained on ", reading_.spacing),
                        {.file = file.string(),
                         .hint = "Resample it to that spacing. A run with spacing = \"any\" in "
                                 "[data] takes every volume."});
    const std::int64_t channels = weights_.recipe.model.channels;
    if (channels != 0 && channels != volume.channels)
      throw FormatError(text("has ", counted_channels(volume.channels),
                             ", and the model of the run takes ", channels),
                        {.file = file.string()});
  }

  static std::string counted_channels(std::int64_t channels) {
    return text(channels, channels == 1 ? " channel" : " channels");
  }

  void predict(const fs::path& file, const data::Volume& volume, const fs::path& slices) {
    const at::NoGradGuard no_grad;
    const at::Tensor input = data::volume_to_tensor(volume, reading_.normalization);
    const at::Tensor probabilities =
        data::slide(input, reading_.windows, [&](const at::Tensor& windows) {
          if (!pipeline_) pipeline_ = make_trained_pipeline(weights_, model_, devices_, windows);
          return with_inputs_named(weights_.recipe, windows,
                                   [&] { return pipeline_->evaluate(windows).to(at::kCPU); });
        });
    if (!at::isfinite(probabilities).all().item<bool>()) {
      result_.problems.push_back(
          text(file.string(), ": the model's output has values that are infinite or NaN"));
      return;
    }
    const at::Tensor ids = probabilities.argmax(0);
    const fs::path mask = mask_file(file, options_.out);
    data::write_label_volume(mask, labels_of(ids, volume, reading_.label_values));
    data::write_png(slices, draw_slices(input[0], ids,
                                        text(file.filename().string(),
                                             ", predicted "
                                             "classes")));
    result_.images.push_back(file);
    result_.masks.push_back(mask);
    result_.pictures.push_back(slices);
  }

  const PredictOptions& options_;
  RunWeights weights_;
  VolumeReading reading_;
  std::vector<fs::path> volumes_, slices_;
  std::vector<Device> devices_;
  nn::Layers model_;
  std::unique_ptr<Pipeline> pipeline_;
  PredictResult result_;
};

}  // namespace

PredictResult predict_volumes(const PredictOptions& options, RunWeights weights,
                              const DataSet& set) {
  return VolumePredictor(options, std::move(weights), set).run();
}

}  // namespace trestle::train
