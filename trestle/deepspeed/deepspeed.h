#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/world.h"
#include "trestle/deepspeed/config/config.h"
#include "trestle/deepspeed/config/rate.h"
#include "trestle/nn/layers.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/precision/layer_speed.h"
#include "trestle/sharding/sharded.h"

// Trains by a JSON configuration of DeepSpeed, with DeepSpeed's calls:
//
//   auto net = std::make_shared<NetImpl>();
//   auto engine = trestle::deepspeed::initialize(net, "ds_config.json", world);
//   for (auto& [x, y] : loader) {               // this rank's micro-batches
//     engine.backward(torch::cross_entropy_loss(engine(x), y));
//     engine.step();                            // at the end of a batch: clips and steps
//   }
//
// docs/deepspeed.md lists what is used of a configuration. Levels, precision and reductions are
// those of sharding/sharded.h: engine.sharded().
namespace trestle::checkpoint {
struct DeepspeedGroup;
struct DeepspeedParameter;
}  // namespace trestle::checkpoint

namespace trestle::deepspeed {

struct InitializeOptions {
  // Makes the optimizer instead of the one in the file, over the tensors that this rank steps, with
  // the names of the model.
  std::function<std::unique_ptr<torch::optim::Optimizer>(const NamedTensors&)> optimizer = {};
  std::optional<at::Device> device = {};  // to move the model to; nothing: it stays
  std::uint64_t seed = 0;                 // of dropout
  // Gets one line on rank 0 if the file's precision is much slower than fp32 on this CPU: one layer
  // is measured for that (precision/layer_speed.h). The engine computes in it all the same. Null:
  // the line is written to the standard error.
  std::function<void(const std::string&)> warn = {};
  // Replaces that measurement, for example in a test.
  std::function<std::optional<precision::LayerSpeed>()> layer_speed = {};
};

// The files that save_checkpoint() writes under a tag.
enum class CheckpointForm {
  Trestle,   // trestle's own folder (sharding/save/save.h), at any point of a training
  Deepspeed  // DeepSpeed's files, from which DeepSpeed 0.19 resumes with the same bits
};

struct LoadedCheckpoint {
  std::filesystem::path folder;
  std::map<std::string, double> client_state;
};

class Engine {
 public:
  using Config = DeepspeedConfig;

  // initialize() constructs it.
  Engine(const nn::Layers& model, const World& world, Config config,
         const InitializeOptions& options);
  Engine(const std::shared_ptr<torch::nn::Module>& model, const World& world, Config config,
         const InitializeOptions& options);

  // The forward of nn::Layers; ModuleEngine has the one of a module. With fp16 and bf16 inputs are
  // cast, and outputs keep the dtype that the model computes in.
  at::Tensor operator()(const at::Tensor& input);
  nn::Values operator()(nn::Values inputs);

  // Computes the gradients of the loss, divided by gradient_accumulation_steps() and multiplied by
  // the scale of fp16. At stages 0 and 1 they are reduced over ranks with the last micro-batch of a
  // batch, at stages 2 and 3 with each.
  void backward(const at::Tensor& loss);
  // Call it after each backward(). At the end of a batch it clips, steps the optimizer unless fp16
  // overflowed, clears the gradients and advances the schedule; otherwise it counts. Throws
  // StateError without a backward(), if the last backward() of a batch was in no_sync(), and, with
  // fp16 from stage 1 on, for an overflow at the lowest scale.
  void step();
  // Whether the next step() ends a batch.
  bool is_gradient_accumulation_boundary() const;

  // As in DeepSpeed: backwards are not reduced while the returned object lives. Throws UsageError
  // at stages 2 and 3, whose gradients are sharded as they are computed, and StateError inside of
  // another no_sync(); so does a step() inside.
  class NoSync;
  NoSync no_sync();

  // Writes `folder`/`tag` (default: "global_step12"): weights, optimizer state, the scale, the step
  // counters and the program's own numbers; when all ranks have written, the tag goes into
  // `folder`/latest. Any number of ranks at any stage can load it (sharding/save.h). All ranks call
  // it. Throws as trestle::save(), UsageError for a tag that is not a folder name or differs
  // between ranks. In the middle of a batch the gradients of stages 2 and 3 are saved too; those of
  // stages 0 and 1 are not reduced yet: StateError.
  //
  // DeepSpeed's form is written for this number of ranks and stage, with the names of this model in
  // their order: those of the model in Python. Parameters that were frozen before initialize() are
  // frozen there too, in the dtype in which the engine computes. Throws UsageError in the middle of
  // a batch, with fp16 or mics_shard_size, with parameters frozen later, for weights that are not
  // fp32, for an optimizer of another class than Adam, AdamW, SGD and RMSprop, and at stage 0 in
  // fp32 for frozen parameters beside several groups. A checkpoint in trestle's form is in
  // `folder`/`tag`.trestle meanwhile.
  void save_checkpoint(const std::filesystem::path& folder, std::string tag = "",
                       const std::map<std::string, double>& client_state = {},
                       CheckpointForm form = CheckpointForm::Trestle);
  // Loads `folder`/`tag`, or the checkpoint that latest names, in either form; returns nothing
  // without a tag and without latest. DeepSpeed's own may be of any stage and number of ranks; of
  // its client state the numbers are read. The program restores the position of its data loader
  // itself, from global_steps() and micro_steps(). Throws as trestle::load(), and UsageError for a
  // checkpoint from the middle of a batch of other micro-batches.
  std::optional<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& folder,
                                                  std::string tag = "");

  void train(bool on = true);
  void eval() { train(false); }
  void zero_grad() { sharded_.zero_grad(); }

  int local_rank() const { return world_.local_rank(); }
  int global_rank() const { return world_.rank(); }
  int world_size() const { return world_.size(); }
  std::int64_t train_batch_size() const { return config_.train_batch; }
  std::int64_t train_micro_batch_size_per_gpu() const { return config_.micro_batch; }
  std::int64_t gradient_accumulation_steps() const { return config_.accumulate; }
  double gradient_clipping() const { return config_.clip_grad_norm; }
  int zero_optimization_stage() const { return static_cast<int>(config_.stage); }
  bool fp16_enabled() const { return config_.precision == "fp16"; }
  bool bfloat16_enabled() const { return config_.precision == "bf16"; }
  std::vector<double> get_lr() const;  // of each group, for the next step
  // The norm of the last step's gradients before clipping. Nothing before the first step, for an
  // overflow, and without clipping and scaling.
  std::optional<double> get_global_grad_norm() const { return norm_; }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1; }
  bool was_step_applied() const { return applied_last_; }  // false: skipped for an overflow
  std::int64_t micro_steps() const { return micro_steps_; }
  std::int64_t global_steps() const { return global_steps_; }  // with the skipped ones
  std::int64_t skipped_steps() const { return skipped_steps_; }

  Sharded& sharded() { return sharded_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  const Config& config() const { return config_; }
  // The configuration as it is used, and how the model is sharded.
  std::string description() const;

 private:
  void finish(const InitializeOptions& options);
  void take_step();
  void follow_schedule();
  void refuse_deepspeeds_form() const;
  std::vector<checkpoint::DeepspeedParameter> parameters_in_python() const;
  std::vector<checkpoint::DeepspeedGroup> groups_in_python() const;
  void convert(const std::filesystem::path& folder, const std::string& tag,
               const std::map<std::string, double>& client_state);

  Config config_;
  World world_;
  Sharded sharded_;
  NamedTensors parameters_;  // the model's, frozen ones too, under all their names
  std::function<void(bool)> set_mode_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<precision::GradientScaler> scaler_;
  std::optional<DeepspeedRate> rate_;
  std::vector<double> rate_factors_;  // of each group
  std::shared_ptr<bool> in_no_sync_ = std::make_shared<bool>(false);
  bool has_gradients_ = false, reduced_last_ = false, applied_last_ = false;
  std::optional<double> norm_;
  std::int64_t micro_steps_ = 0, global_steps_ = 0, skipped_steps_ = 0;
};

class Engine::NoSync {
 public:
  explicit NoSync(std::shared_ptr<bool> flag) : flag_(std::move(flag)) { *flag_ = true; }
  ~NoSync() {
    if (flag_) *flag_ = false;
  }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<bool> flag_;
};

// The engine of a module calls its forward(), with any arguments and results.
template <class Module>
class ModuleEngine : public Engine {
 public:
  ModuleEngine(std::shared_ptr<Module> module, const World& world, Config config,
               const InitializeOptions& options)
      : Engine(std::static_pointer_cast<torch::nn::Module>(module), world, std::move(config),
               options),
        module_(std::move(module)) {}

  template <class... Inputs>
  auto operator()(Inputs... inputs) {
    return sharded().run([this](auto&... given) { return module_->forward(given...); },
                         std::move(inputs)...);
  }
  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  std::shared_ptr<Module> module_;
};

// Reads the file for the ranks of the world. All ranks call it with the same file and model. Throws
// UsageError as read_deepspeed_config() and Sharded do, if neither the file nor the program
// has an optimizer, and on all ranks if their files differ. At stage 3 a torch module is sharded by
// its Hooked modules (sharding/hooked.h).
Engine initialize(const nn::Layers& model, const std::filesystem::path& file, const World& world,
                  const InitializeOptions& options = {});

template <class Module>
ModuleEngine<Module> initialize(std::shared_ptr<Module> model, const std::filesystem::path& file,
                                const World& world, const InitializeOptions& options = {}) {
  return {std::move(model), world, read_deepspeed_config(file, world.size()), options};
}

}  // namespace trestle::deepspeed
