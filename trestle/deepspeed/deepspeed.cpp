#include "trestle/deepspeed/deepspeed.h"

#include <torch/nn/module.h>

#include <iostream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/deepspeed/options.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/unscale.h"

namespace trestle::deepspeed {
namespace {

// Called by all ranks before anything is made.
void check_deepspeed(const DeepspeedConfig& config, const World& world,
                     const InitializeOptions& options) {
  if (config.ranks != world.size())
    throw UsageError(
        text(config.file, " was read for ", config.ranks, " ranks, and there are ", world.size()));
  DeepspeedConfig same = config;
  same.file = "";  // its place may differ
  if (const auto differs = comm::find_difference(world.group(), to_text(same)))
    throw UsageError(text("rank ", differs->rank, " reads another configuration than rank 0"),
                     {.file = config.file, .hint = "Give all ranks the same file."});
  if (!options.optimizer && !config.optimizer)
    throw UsageError("the file names no optimizer, and the program gives none",
                     {.file = config.file,
                      .hint = "Add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
                              "1e-3}}, or set InitializeOptions::optimizer."});
  if (options.optimizer && config.schedule && config.schedule->type == "OneCycle" &&
      config.schedule->cycle_momentum)
    throw UsageError("OneCycle moves the momentum of an optimizer that the file names",
                     {.file = config.file,
                      .hint = "Set cycle_momentum to false in its params, or name the optimizer in "
                              "the file."});
}

NamedTensors parameters_of(const nn::Layers& model) { return model.named_parameters(); }
NamedTensors parameters_of(const std::shared_ptr<torch::nn::Module>& model) {
  NamedTensors parameters;
  for (const auto& parameter : model->named_parameters())
    parameters.emplace_back(parameter.key(), parameter.value());
  return parameters;
}

std::optional<precision::LayerSpeed> layer_speed(const nn::Layers& model) {
  return precision::measure_layer_speed(model);
}
std::optional<precision::LayerSpeed> layer_speed(const std::shared_ptr<torch::nn::Module>& model) {
  return precision::measure_layer_speed(parameters_of(model));
}

// fp16 on a CPU can be so slow that the first step seems to hang.
template <class Model>
void warn_of_slow_precision(const Model& model, const World& world, const DeepspeedConfig& config,
                            const InitializeOptions& options) {
  const Precision precision = precision::parse_precision(config.precision);
  if (precision == Precision::Float32 || world.rank() != 0) return;
  if (options.device && options.device->is_cuda()) return;
  const auto speed = options.layer_speed ? options.layer_speed() : layer_speed(model);
  const auto slow = speed ? precision::find_slow_precision(precision, *speed) : std::nullopt;
  if (!slow) return;
  const std::string words = text(config.file, ": ", precision::describe(*slow), ". ",
                                 slow->better == Precision::BFloat16
                                     ? "\"bf16\": {\"enabled\": true} instead of \"fp16\""
                                     : text("\"enabled\": false in \"", config.precision, "\""),
                                 " is faster; the engine computes in ", config.precision);
  if (options.warn)
    options.warn(words);
  else
    std::cerr << "trestle: " + words + "\n";
}

template <class Model>
Sharded make_sharded(const Model& model, const World& world, const DeepspeedConfig& config,
                     const InitializeOptions& options) {
  check_deepspeed(config, world, options);
  warn_of_slow_precision(model, world, config, options);
  ShardOptions shards = shard_options(config);
  shards.device = options.device;
  shards.seed = options.seed;
  return {model, DeviceMesh(world, mesh_dimensions(config)), shards};
}

}  // namespace

Engine::Engine(const nn::Layers& model, const World& world, Config config,
               const InitializeOptions& options)
    : config_(std::move(config)),
      world_(world),
      sharded_(make_sharded(model, world, config_, options)),
      parameters_(parameters_of(model)),
      set_mode_(
          [layers = nn::Layers(model)](bool on) mutable { on ? layers.train() : layers.eval(); }) {
  finish(options);
}

Engine::Engine(const std::shared_ptr<torch::nn::Module>& model, const World& world, Config config,
               const InitializeOptions& options)
    : config_(std::move(config)),
      world_(world),
      sharded_(make_sharded(model, world, config_, options)),
      parameters_(parameters_of(model)),
      set_mode_([model](bool on) { model->train(on); }) {
  finish(options);
}

void Engine::finish(const InitializeOptions& options) {
  optimizer_ = options.optimizer ? options.optimizer(sharded_.named_parameters())
                                 : optim::make_optimizer(sharded_.parameters(), *config_.optimizer);
  if (!optimizer_) throw UsageError("InitializeOptions::optimizer made no optimizer");
  if (options.optimizer && config_.optimizer) {
    config_.notes.push_back(text("optimizer ", config_.optimizer->name,
                                 " of the file is not used: the program gives its own"));
    config_.optimizer.reset();
  }
  if (fp16_enabled()) scaler_.emplace(scaler_options(config_));
  if (!config_.schedule) return;
  const double base = optim::learning_rate(*optimizer_);
  rate_.emplace(base, *config_.schedule);
  // WarmupCosineLR multiplies each group's own rate; the other schedules set one rate for all
  // groups.
  if (config_.schedule->type == "WarmupCosineLR" && base > 0)
    for (const double own : get_lr()) rate_factors_.push_back(own / base);
  follow_schedule();
}

at::Tensor Engine::operator()(const at::Tensor& input) { return sharded_.forward(input); }
nn::Values Engine::operator()(nn::Values inputs) { return sharded_.forward(std::move(inputs)); }

bool Engine::is_gradient_accumulation_boundary() const {
  return (micro_steps_ + 1) % config_.accumulate == 0;
}

void Engine::backward(const at::Tensor& loss) {
  at::Tensor scaled = scaler_ ? scaler_->scale(loss) : loss;
  if (config_.accumulate > 1) scaled = scaled / static_cast<double>(config_.accumulate);
  reduced_last_ = !*in_no_sync_ && (config_.stage >= 2 || is_gradient_accumulation_boundary());
  if (reduced_last_) {
    sharded_.backward(scaled);
  } else {
    const auto no_sync = sharded_.no_sync();
    sharded_.backward(scaled);
  }
  has_gradients_ = true;
}

void Engine::step() {
  if (*in_no_sync_)
    throw StateError("step() inside no_sync()", {.hint = "End the no_sync() first."});
  if (!has_gradients_)
    throw StateError("step() without a backward() since the last one",
                     {.hint = "Call backward(loss) and step() once for each micro-batch."});
  if (is_gradient_accumulation_boundary()) {
    if (!reduced_last_)
      throw StateError(
          "the last backward() of a batch was inside no_sync(): its gradients are this "
          "rank's alone",
          {.hint = "End the no_sync() before the batch's last backward()."});
    take_step();
  }
  has_gradients_ = false;
  ++micro_steps_;
}

void Engine::take_step() {
  const double most = config_.clip_grad_norm;
  applied_last_ = true;
  norm_.reset();
  if (scaler_) {
    const UnscaledGradients unscaled = unscale(*scaler_, sharded_, {.max_norm = most});
    applied_last_ = unscaled.finite;
    if (unscaled.finite) norm_ = unscaled.norm;
  } else if (most > 0) {
    norm_ = sharded_.clip_grad_norm(most);
  }
  if (applied_last_) optimizer_->step();
  sharded_.zero_grad();
  ++global_steps_;
  if (!applied_last_) ++skipped_steps_;
  follow_schedule();
  if (!scaler_) return;
  try {
    scaler_->update();
  } catch (Error& error) {
    error.add_context(text("in step ", global_steps_, " of ", config_.file));
    throw;
  }
}

// A skipped step does not advance the schedule.
void Engine::follow_schedule() {
  if (!rate_) return;
  const std::int64_t applied = global_steps_ - skipped_steps_;
  optim::set_learning_rate(*optimizer_, rate_->at(applied), rate_factors_);
  if (const auto momentum = rate_->momentum_at(applied))
    optim::set_momentum(*optimizer_, *momentum);
}

Engine::NoSync Engine::no_sync() {
  if (config_.stage >= 2)
    throw UsageError(
        text("no_sync() at stage ", config_.stage,
             ", where gradients are sharded as they are computed"),
        {.hint = "Leave it out: gradient_accumulation_steps adds up the sharded ones."});
  if (*in_no_sync_) throw StateError("no_sync() inside of another one");
  return NoSync(in_no_sync_);
}

void Engine::train(bool on) { set_mode_(on); }

std::vector<double> Engine::get_lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::string Engine::description() const {
  std::string words = to_text(config_);
  if (config_.drop_last) words += "dataloader_drop_last is the program's: it has its own loader\n";
  return words + sharded_.description();
}

Engine initialize(const nn::Layers& model, const std::filesystem::path& file, const World& world,
                  const InitializeOptions& options) {
  return {model, world, read_deepspeed_config(file, world.size()), options};
}

}  // namespace trestle::deepspeed
