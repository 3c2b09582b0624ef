#include "trestle/train/measured_samples.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/plan/extrapolate.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/setup.h"

namespace trestle::train {

namespace {

// Pixels of the samples. Larger samples are more exact and take longer: seconds for the largest
// model that ships.
constexpr double small_area = 96 * 96;
constexpr double large_area = 192 * 192;
constexpr std::int64_t least_side = 32;
constexpr std::int64_t few_examples = 4;
constexpr double quick_step = 0.25;     // seconds of all layers
constexpr std::int64_t long_row = 256;  // tokens

// The sizes of an image of about this area with the same proportions. They are multiples of 32,
// which nets with five halvings need.
std::vector<std::int64_t> sizes_of_picture(const at::Tensor& example, double area) {
  const double shrink = std::sqrt(area / static_cast<double>(example.size(2) * example.size(3)));
  const auto side = [&](std::int64_t dimension) {
    const double wanted = static_cast<double>(example.size(dimension)) * shrink / 32;
    return 32 * std::max<std::int64_t>(1, std::llround(wanted));
  };
  return {1, example.size(1), side(2), side(3)};
}

// Samples of volumes have fewer columns, and all slices and rows: libtorch chooses the kernel of a
// convolution, and with it the memory, by the number of examples, channels, slices and rows.
constexpr std::int64_t few_columns = 16, more_columns = 32;
constexpr double large_volume = 64 * 64 * 64;

// Several examples have another kernel than one.
std::vector<std::int64_t> sizes_of_volume(const at::Tensor& example, std::int64_t count,
                                          std::int64_t columns) {
  return {std::min<std::int64_t>(count, 2), example.size(1), example.size(2), example.size(3),
          columns};
}

// Pixels or voxels of all examples.
double places_of(at::IntArrayRef sizes) {
  return static_cast<double>(sizes[0] * c10::multiply_integers(sizes.slice(2)));
}

bool is_block(const nn::Layer& layer) { return layer.name.starts_with("blocks."); }

// Blocks of a transformer with equal parameters are equal, unless the recipe recomputes some of
// them by their names.
std::vector<int> kinds_of(const recipe::Recipe& recipe, const nn::Graph& graph) {
  if (!is_transformer(recipe)) return {};
  for (const std::string& name : recipe.pipeline.checkpoint)
    if (name != "blocks" && name != "attention" && name != "layers") return {};
  std::vector<int> kinds;
  std::map<std::string, int> known;  // by the parameters as text
  for (const nn::Layer& layer : graph.layers) {
    kinds.push_back(-1);
    if (!is_block(layer)) continue;
    std::string parameters;
    for (const auto& [name, tensor] : layer.named_parameters())
      parameters +=
          text(name, " ", join(tensor.sizes().vec(), "x"), " ", c10::toString(tensor.scalar_type()),
               tensor.requires_grad() ? " trained\n" : " frozen\n");
    kinds.back() = known.emplace(parameters, static_cast<int>(known.size())).first->second;
  }
  return kinds;
}

// A backward on the CPU runs in the thread of the forward. On a virtual device it has a thread of
// its own, and the threads of the forward's operators wait busily beside those of the backward's.
void take_times(const plan::LayerProfile& from, plan::LayerProfile* profile) {
  for (std::size_t i = 0; i < profile->layers.size(); ++i) {
    profile->layers[i].forward = from.layers[i].forward;
    profile->layers[i].backward = from.layers[i].backward;
    if (!from.layers[i].split || !profile->layers[i].split) continue;
    profile->layers[i].split->input_grad = from.layers[i].split->input_grad;
    profile->layers[i].split->weight_grad = from.layers[i].split->weight_grad;
  }
}

bool is_large_sample(const at::Tensor& example) {
  // Both samples are smaller than the picture.
  if (example.dim() == 4)
    return places_of(example.sizes()) > 2 * large_area &&
           std::min(example.size(2), example.size(3)) > least_side;
  return example.dim() == 5 && example.size(4) >= 2 * more_columns &&
         places_of(example.sizes()) > large_volume;
}

}  // namespace

MeasuredSamples::MeasuredSamples(const recipe::Recipe& recipe, const nn::Layers& model,
                                 at::Device device,
                                 const std::optional<precision::SlowPrecision>& slow,
                                 std::shared_ptr<MessageLog> log, int cpu_threads,
                                 SplitBackwards split, const MeasuredSamples* like)
    : recipe_(recipe),
      model_(model),
      device_(device),
      precision_(precision::parse_precision(recipe.train.precision)),
      log_(std::move(log)),
      cpu_threads_(cpu_threads),
      split_(split),
      like_(like) {
  if (!slow || precision_ != Precision::Float16 || slow->speed.bf16 <= 0) return;
  precision_ = Precision::BFloat16;
  times_ = slow->speed.fp16 / slow->speed.bf16;
}

plan::LayerProfile MeasuredSamples::profile(const at::Tensor& example, std::int64_t count) const {
  if (is_large_sample(example)) {
    try {
      return by_places(example, count);
    } catch (const c10::Error& error) {
      if (!is_misfit(error)) throw;  // a net for pictures of one size
    } catch (const std::exception& error) {
      // A layer of the user's own refuses other sizes too. The real one decides.
      if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    }
  }
  if (is_long_row(example)) return by_tokens(example, count);
  return by_examples(example, count);
}

// Neither times nor bytes need lie on a line: libtorch chooses the kernel of a convolution by the
// number of examples, a peak is the larger one of what grows with it and what does not, and a line
// through two short times multiplies their errors. So the layers are measured as near to `count` as
// is quick.
plan::LayerProfile MeasuredSamples::by_examples(const at::Tensor& example,
                                                std::int64_t count) const {
  if (count <= few_examples) return measure(example, count);
  const plan::LayerProfile few = measure(example, few_examples);
  const double of_one = few.seconds() / static_cast<double>(few_examples);
  std::int64_t many = count;
  while (many > few_examples && of_one * static_cast<double>(many) > quick_step) many /= 2;
  many = std::max(many, few_examples);
  const plan::LayerProfile large = many == few_examples ? few : measure(example, many);
  if (many == count) return large;
  return plan::extrapolate(measure(example, many / 2), static_cast<double>(many / 2), large,
                           static_cast<double>(many), static_cast<double>(count));
}

const plan::LayerProfile& MeasuredSamples::measured(const at::Tensor& example,
                                                    std::int64_t count) const {
  std::vector<std::int64_t> sizes = example.sizes().vec();
  sizes[0] = count;
  if (const auto found = measured_.find(sizes); found != measured_.end()) return found->second;
  const nn::Graph graph = graph_of_training(recipe_, model_);
  KnownLayers known{.kind = kinds_of(recipe_, graph)};
  if (like_ != nullptr) {
    known.profile = &like_->measured(example, count);
    for (const nn::Layer& layer : graph.layers) known.is_known.push_back(!is_block(layer));
  }
  const at::Tensor values =
      example.is_floating_point()
          ? at::rand(sizes, at::detail::createCPUGenerator()).to(example.scalar_type())
          : example.expand(sizes).clone();
  const at::Tensor inputs = pipeline::in_memory_format({values}, memory_format_of(recipe_))[0];
  const precision::Autocast autocast(precision_);
  plan::LayerProfile profile = profile_layers(graph, {inputs}, device_, log_.get(), known, split_);
  if (cpu_threads_ > 1) {
    const DeviceThreads threads(at::kCPU, cpu_threads_);
    take_times(profile_layers(graph, {inputs}, at::kCPU, nullptr, known, split_), &profile);
  }
  return measured_.emplace(sizes, std::move(profile)).first->second;
}

plan::LayerProfile MeasuredSamples::measure(const at::Tensor& example, std::int64_t count) const {
  plan::LayerProfile profile = measured(example, count);
  for (plan::LayerCost& cost : profile.layers) {
    if (cost.parameters == 0) continue;
    cost.forward *= times_;
    cost.backward *= times_;
    if (!cost.split) continue;
    cost.split->input_grad *= times_;
    cost.split->weight_grad *= times_;
  }
  return profile;
}

plan::LayerProfile MeasuredSamples::by_places(const at::Tensor& example, std::int64_t count) const {
  const auto measured = [&](const std::vector<std::int64_t>& sizes) {
    return std::pair(measure(at::zeros({1}, example.scalar_type()).expand(sizes), sizes[0]),
                     places_of(sizes));
  };
  const bool volume = example.dim() == 5;
  const auto [small, small_size] = measured(volume ? sizes_of_volume(example, count, few_columns)
                                                   : sizes_of_picture(example, small_area));
  const auto [large, large_size] = measured(volume ? sizes_of_volume(example, count, more_columns)
                                                   : sizes_of_picture(example, large_area));
  return plan::extrapolate(small, small_size, large, large_size,
                           static_cast<double>(count) * places_of(example.sizes()),
                           volume ? 1 : static_cast<double>(count));
}

bool MeasuredSamples::is_long_row(const at::Tensor& example) const {
  return is_transformer(recipe_) && example.dim() == 2 && example.size(1) >= long_row &&
         recipe_.transformer.attention == "fused";
}

plan::LayerProfile MeasuredSamples::by_tokens(const at::Tensor& example, std::int64_t count) const {
  const std::int64_t small = example.size(1) / 8, large = example.size(1) / 4;
  return plan::extrapolate(measure(example.narrow(1, 0, small), 1), static_cast<double>(small),
                           measure(example.narrow(1, 0, large), 1), static_cast<double>(large),
                           static_cast<double>(count * example.size(1)));
}

}  // namespace trestle::train
