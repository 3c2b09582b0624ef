// Declarations that the examples in headers use, under the header's name. tools/header_examples.py
// inserts them before each example of that header, in the header's namespace.

// [trestle/base/choose.h]
#include <array>
struct Model {};
Model unet();
Model toy();
// [trestle/base/file_lock.h]
#include "trestle/base/error.h"
extern const std::filesystem::path folder;
// [trestle/base/stopwatch.h]
void step();
void report(double seconds);
// [trestle/base/random.h]
#include "trestle/base/keyed_seed.h"
extern std::uint64_t seed;
extern int epoch;
// [trestle/view/svg.h]
#include "trestle/base/files.h"
extern schedule::Timeline simulated, measured;
// [trestle/view/chrome_trace.h]
#include "trestle/base/files.h"
extern schedule::Timeline simulated, measured;
// [trestle/view/curve.h]
extern std::vector<double> epochs, training, validation, dice;
// [trestle/mesh/layout/mesh_layout.h]
#include <iostream>
// [trestle/schedule/walk_order.h]
extern const std::size_t ranks, items;
// [trestle/schedule/routes.h]
extern const Schedule schedule;
extern const Action action;
void use(const Route& route);
// [trestle/plan/balance.h]
extern const LayerProfile profile;
// [trestle/plan/transformer_traffic.h]
extern const BlockSizes sizes;
// [trestle/plan/stage_costs.h]
#include "trestle/plan/balance.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/simulate.h"
extern const LayerProfile profile;
// [trestle/plan/extrapolate.h]
extern const LayerProfile of_64_pixels, of_128_pixels;
// [trestle/plan/choose/techniques.h]
#include <iostream>
extern const plan::PlannedModel& model;
extern const plan::Machine machine;
// [trestle/plan/conv/planned_layers.h]
#include "trestle/plan/conv/conv_models.h"
#include "trestle/plan/search/search.h"
extern const plan::Machine machine;
// [trestle/plan/page/plan_page.h]
#include "trestle/base/files.h"
extern const plan::PlannedModel& model;
extern const plan::Machine machine;
// [trestle/plan/search/pareto_front.h]
extern const std::vector<BoundedPoint> points;
double simulated(std::size_t point);
// [trestle/plan/search/search.h]
#include "trestle/plan/gpt/planned_gpt.h"
extern const Machine machine;
// [trestle/simulate/simulate.h]
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
// [trestle/data/files/resize.h]
extern Image photo;
// [trestle/cli/command_line.h]
extern Verb parent;
int diagnose(bool json);
// [trestle/comm/gather.h]
extern const Group group;
extern const int stage;
extern const double seconds;
// [trestle/checkpoint/files/save_ranks.h]
struct RankGroup {
  int rank() const;
  int size() const;
  std::vector<std::string> all_gather_bytes(const std::string& mine) const;
};
extern const RankGroup group;
// [trestle/comm/group.h]
#include <torch/types.h>

#include "trestle/comm/world.h"
extern World world;
// [trestle/comm/work.h]
#include "trestle/comm/group.h"
extern const Group group;
extern at::Tensor gradient;
void compute();
// [trestle/comm/world.h]
#include <torch/types.h>
// [trestle/precision/layer_speed.h]
#include <iostream>
extern const nn::Layers net;
// [trestle/models/transformer/transformer.h]
#include "trestle/models/transformer/read_config.h"
extern const at::Tensor ids;
#include "trestle/mesh/device_mesh.h"
extern const World world;
extern const TransformerConfig config;
// [trestle/models/transformer/public_weights.h]
#include "trestle/checkpoint/weights.h"
#include "trestle/nn/layers.h"
extern const TransformerConfig config;
extern const nn::Layers net;
// [trestle/models/transformer/vocabulary.h]
#include "trestle/models/transformer/public_weights.h"
extern const TransformerConfig config;
extern const nn::Layers net;
// [trestle/checkpoint/padded_rows.h]
#include "trestle/nn/layers.h"
extern const nn::Layers net;
// [trestle/tokens/add_tokens.h]
#include "trestle/tokens/open_tokenizer.h"
// [trestle/launch/run_as_ranks.h]
int train();
// [trestle/comm/rank_error.h]
#include "trestle/comm/threads/spawn.h"
void train(World& world);
// [trestle/comm/threads/spawn.h]
#include <torch/nn.h>
#include <torch/types.h>
#include "trestle/device/seeded.h"
// [trestle/device/seeded.h]
#include <torch/nn.h>
// [trestle/device/clock.h]
extern const at::Device device;
extern const at::Tensor x;
at::Tensor layer(const at::Tensor& x);
// [trestle/device/stream.h]
#include <thread>
extern const at::Device device;
// [trestle/device/stream_check.h]
#include "trestle/trestle.h"
extern Pipeline pipeline;
extern const at::Tensor x, y;
extern const nn::Loss loss;
// [trestle/trestle.h]
#include <torch/nn.h>
// [trestle/nn/layers.h]
#include <torch/nn.h>
extern at::Tensor x;
struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(int in, int out);
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(DoubleConv);
struct DownImpl : DoubleConvImpl {
  using DoubleConvImpl::DoubleConvImpl;
};
TORCH_MODULE(Down);
struct UpImpl : torch::nn::Module {
  UpImpl(int in, int out);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip);
};
TORCH_MODULE(Up);
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width);
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(Block);
// [trestle/nn/lazy_module.h]
#include <torch/nn/module.h>
#include "trestle/nn/layer.h"
extern Layer layer;
// [trestle/nn/make_layer.h]
#include <torch/nn.h>
// [trestle/nn/boundary.h]
extern Boundary boundary;
extern Values values;
extern const std::vector<bool> owned;
extern const std::uint64_t mode;
void consumer(const Values& values);
// [trestle/nn/checkpointing.h]
extern int batches_seen;
// [trestle/nn/deferred_batch_norm.h]
#include <torch/nn.h>
extern torch::nn::Sequential model;
extern const at::Tensor mini_batch;
// [trestle/pipeline/profile/profile_layers.h]
#include "trestle/plan/balance.h"
extern const nn::Layers net;
extern const at::Tensor images;
// [trestle/nn/snapshot.h]
extern const ModuleState state;
extern BufferCopies copies;
extern const RunKey key;
// [trestle/device/error_context.h]
void work();
// [trestle/optim/clip_grad_norm.h]
#include "trestle/nn/layers.h"
extern nn::Layers net;
// [trestle/deepspeed/config/rate.h]
struct Optimizer;
extern Optimizer& optimizer;
void set_learning_rate(Optimizer& optimizer, double rate);
void train(int step);
// [trestle/optim/learning_rate.h]
#include "trestle/optim/factory.h"
extern torch::optim::Optimizer& optimizer;
void train(int step);
// [trestle/optim/reduce_on_plateau.h]
#include <torch/optim/optimizer.h>
extern double validation_dice, rate;
extern torch::optim::Optimizer& optimizer;
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);
// [trestle/checkpoint/safetensors.h]
#include "trestle/nn/layers.h"
extern nn::Layers model;
// [trestle/checkpoint/save.h]
#include <torch/optim.h>
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/nn/layers.h"
#include "trestle/precision/gradient_scaler.h"
extern nn::Layers net;
extern const std::unique_ptr<torch::optim::Optimizer> optimizer;
extern precision::GradientScaler scaler;
extern trestle::checkpoint::TrainState state;
void train(std::int64_t step);
// [trestle/sharding/save/background_save.h]
extern DeviceMesh mesh;
extern Sharded sharded;
extern const std::unique_ptr<torch::optim::Optimizer> optimizer;
extern checkpoint::TrainState state;
void train(std::int64_t step);
// [trestle/sharding/save/save.h]
#include <torch/optim.h>
#include "trestle/mesh/device_mesh.h"
#include "trestle/nn/layers.h"
extern nn::Layers net;
extern DeviceMesh mesh;
extern const std::unique_ptr<torch::optim::Optimizer> optimizer;
void train(std::int64_t step);
// [trestle/checkpoint/weights.h]
#include <iostream>
#include "trestle/nn/layers.h"
extern nn::Layers net;
// [trestle/device/device.h]
#include <torch/types.h>
// [trestle/device/virtual_device.h]
#include <torch/types.h>
// [trestle/device/stream_event.h]
extern at::Device source, destination;
// [trestle/device/layer_scope.h]
struct Layer {
  std::string name;
};
extern Layer layer;
// [trestle/device/keyed_random.h]
#include <ATen/core/Tensor.h>
#include "trestle/base/keyed_seed.h"
extern at::Device device;
extern std::uint64_t seed;
extern int step, micro_batch;
extern at::Tensor x;
struct Layer {
  at::Tensor operator()(const at::Tensor& x);
  operator int() const;
};
extern Layer layer;
// [trestle/device/virtual/host_view.h]
extern int device;
extern at::Tensor argument;
// [trestle/pipeline/pipeline.h]
#include <torch/optim.h>
#include <torch/types.h>
extern nn::Layers net;
extern std::vector<std::pair<at::Tensor, at::Tensor>> loader;
extern Pipeline pipeline;
extern const at::Tensor x1, x2, y1, y2;
extern const at::Tensor image, mask;
extern const nn::Loss loss;
// [trestle/pipeline/pipeline_options.h]
#include "trestle/pipeline/pipeline.h"
extern nn::Layers net;
// [trestle/pipeline/find_nonfinite.h]
#include <cmath>
extern Pipeline pipeline;
extern const at::Tensor image, mask;
extern const nn::Loss loss;
// [trestle/precision/autocast.h]
#include <torch/torch.h>
#include "trestle/nn/layers.h"
#include "trestle/pipeline/pipeline.h"
extern nn::Layers net;
extern at::Tensor loss;
extern const at::Tensor x, y;
// [trestle/precision/gradient_scaler.h]
#include <torch/optim.h>
#include "trestle/pipeline/pipeline.h"
extern Pipeline pipeline;
extern torch::optim::Optimizer& optimizer;
extern std::vector<std::pair<at::Tensor, at::Tensor>> loader;
extern const nn::Loss loss;
// [trestle/train/measure.h]
#include <iostream>
// [trestle/train/sweep/sweep.h]
#include <iostream>
// [trestle/train/trainer.h]
#include <iostream>
// [trestle/data/loader.h]
extern std::shared_ptr<const Dataset> train;
struct Split {
  std::vector<std::int64_t> train;
};
extern Split split;
extern std::int64_t epoch, epochs, done;
struct World {
  int size() const, rank() const;
};
extern const World world;
void step(const at::Tensor& inputs, const at::Tensor& targets);
// [trestle/deepspeed/config/config.h]
#include <iostream>
// [trestle/data/sampler.h]
#include "trestle/data/dataset.h"
extern const Dataset* train;
extern std::int64_t epochs;
struct World {
  int size() const, rank() const;
};
extern const World world;
void use(const Sample& sample);
// [trestle/data/tensor_dataset.h]
#include <ATen/Functions.h>
// [trestle/mesh/device_mesh.h]
#include <iostream>
extern World world;
extern const DeviceMesh mesh;
extern const at::Tensor gradient;
// [trestle/data_parallel/data_parallel.h]
#include <torch/nn.h>
#include <torch/optim.h>
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  void reset() override;
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(Net);
extern const at::Tensor x, y;
// [trestle/sync_batch_norm/sync_batch_norm.h]
#include <torch/nn.h>

#include "trestle/comm/world.h"
extern const World world;
// [trestle/sharding/hooks/powersgd.h]
#include <torch/optim.h>

#include "trestle/comm/world.h"
extern const World world;
extern const std::vector<std::pair<at::Tensor, at::Tensor>> batches;
extern const at::Tensor buffer;
extern const std::vector<at::Tensor> gradients;
extern torch::optim::SGD optimizer;
at::Tensor loss_of(const at::Tensor& input, const at::Tensor& target);
#include "trestle/sharding/sharded.h"
extern const nn::Layers net;
extern const DeviceMesh mesh;
// [trestle/sharding/join.h]
#include <torch/torch.h>
#include "trestle/optim/factory.h"
#include "trestle/sharding/sharded.h"
extern std::vector<std::pair<at::Tensor, at::Tensor>> loader;
extern Sharded sharded;
extern std::unique_ptr<torch::optim::Optimizer> optimizer;
// [trestle/sharding/hooks/communication_hook.h]
#include "trestle/sharding/sharded.h"
extern const nn::Layers net;
extern const DeviceMesh mesh;
// [trestle/parallel/shard_timeline.h]
#include "trestle/base/files.h"
#include "trestle/sharding/sharded.h"
#include "trestle/view/svg.h"
extern const World world;
extern Sharded sharded;
extern const at::Tensor x;
at::Tensor loss(const at::Tensor& y);
// [trestle/sharding/ddp.h]
#include "trestle/sharding/sharded.h"
extern World world;
extern const nn::Layers net;
// [trestle/sharding/options/options.h]
#include <torch/torch.h>
#include "trestle/sharding/sharded.h"
extern const nn::Layers net;
extern const DeviceMesh mesh;
extern const at::Tensor x, y;
// [trestle/sharding/unscale.h]
#include <torch/torch.h>
#include "trestle/optim/factory.h"
extern std::vector<std::pair<at::Tensor, at::Tensor>> loader;
extern Sharded sharded;
extern std::unique_ptr<torch::optim::Optimizer> optimizer;
// [trestle/sharding/zero1.h]
#include "trestle/sharding/sharded.h"
extern World world;
extern const nn::Layers net;
// [trestle/sharding/zero2.h]
#include "trestle/sharding/sharded.h"
extern World world;
extern const nn::Layers net;
// [trestle/sharding/fsdp.h]
#include "trestle/sharding/sharded.h"
extern World world;
extern const nn::Layers net;
// [trestle/sharding/hooks/hooked.h]
#include <torch/torch.h>
#include "trestle/sharding/fsdp.h"
#include "trestle/sharding/sharded.h"
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width);
  at::Tensor forward(const at::Tensor& x);
};
extern const DeviceMesh mesh;
// [trestle/sharding/hsdp.h]
#include "trestle/sharding/sharded.h"
extern World world;
extern const nn::Layers net;
// [trestle/parallel/checkpoint_layers.h]
#include "trestle/nn/layers.h"
#include "trestle/pipeline/pipeline.h"
extern const nn::Layers net;
// [trestle/parallel/parallelize.h]
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/optim/factory.h"
extern World world;
extern const nn::Layers net;
extern const at::Tensor image, mask;
extern const models::TransformerConfig config;
// [trestle/sharding/sharded_parameters.h]
extern ShardedParameters stage;
// [trestle/sharding/sharded.h]
#include <torch/torch.h>
#include "trestle/optim/factory.h"
extern World world;
extern const nn::Layers net;
extern std::vector<std::pair<at::Tensor, at::Tensor>> loader;
extern Sharded sharded;
extern const at::Tensor first_half, second_half, image, mask;
extern at::Tensor loss(const at::Tensor& part);
extern const DeviceMesh mesh;
struct NetImpl : torch::nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& image, const at::Tensor& mask);
};
// [trestle/recompute/checkpoint.h]
#include <torch/nn.h>
extern torch::nn::Sequential block;
extern at::Tensor x;
// [trestle/recompute/checkpointed.h]
#include <torch/nn.h>
extern Layers net;
extern at::Tensor x;
// [trestle/recompute/recomputing.h]
void release_weights();
// [trestle/device/random_tape.h]
extern at::Tensor x, y, z;
at::Tensor dropout(const at::Tensor& x);
// [trestle/deepspeed/deepspeed.h]
#include <torch/torch.h>
extern World world;
extern std::vector<std::pair<at::Tensor, at::Tensor>> loader;
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
};
// [trestle/train/levels/levels.h]
#include <iostream>
nn::Layers make_net();
// [trestle/data/augment_volumes.h]
extern const Dataset& patches;
// [trestle/models/unet3d.h]
extern const at::Tensor volumes;
// [trestle/data/sliding_window.h]
struct Evaluator {
  at::Tensor evaluate(const at::Tensor& windows) const;
};
extern const Evaluator pipeline;
extern const at::Tensor volume;
// [trestle/tokens/tokenizer.h]
#include "trestle/tokens/open_tokenizer.h"
// [trestle/tokens/chat_template.h]
#include <memory>
extern const std::unique_ptr<Tokenizer> tokenizer;
// [trestle/tokens/stream_decoder.h]
#include <iostream>
#include <memory>
extern const std::unique_ptr<Tokenizer> tokenizer;
extern const std::vector<Id> ids;
// [trestle/base/counter_random.h]
extern std::uint64_t seed, i;
extern std::vector<double> weight;
// [trestle/tokens/files/token_rows.h]
extern const std::shared_ptr<const TokenSet> set;
// [trestle/generate/generate.h]
extern const LanguageModel model;
extern const std::vector<std::int64_t> prompt;
// [trestle/generate/language_model.h]
extern const nn::Layers net;
extern const models::TransformerConfig config;
extern const std::vector<std::int64_t> prompt;
extern const std::int64_t next;
// [trestle/train/language/evaluate_text.h]
#include <iostream>
extern const generate::LanguageModel model;
extern const std::unique_ptr<tokens::Tokenizer> tokenizer;
extern const std::string words;
// [trestle/train/language/evaluate_choices.h]
#include <iostream>
extern const generate::LanguageModel model;
extern const std::unique_ptr<tokens::Tokenizer> tokenizer;
// [trestle/generate/write_text.h]
#include "trestle/tokens/tokenizer.h"
extern const std::unique_ptr<tokens::Tokenizer> tokenizer;
extern const LanguageModel model;
// [trestle/nn/keyed_dropout.h]
extern at::Tensor x;
bool is_training();
// [trestle/tensor_parallel/tensor_ranks.h]
#include "trestle/nn/layers.h"
extern const World world;
extern const TensorRanks ranks;
extern const nn::Layers net;
extern const at::Tensor ids;
// [trestle/tensor_parallel/operators.h]
#include <ATen/Functions.h>
extern const TensorRanks ranks;
extern const at::Tensor input, w1, w2;
// [trestle/tensor_parallel/linear.h]
#include <ATen/Functions.h>
extern const TensorRanks ranks;
extern const at::Tensor x, up, up_bias, down, bias, own_columns, own_rows;
// [trestle/train/layers_on_paper.h]
extern const recipe::Recipe recipe;
extern const TrainHooks hooks;
extern const std::vector<Device> devices;
// [trestle/train/planner/planned_recipe.h]
#include "trestle/device/virtual_device.h"
#include "trestle/plan/search/search.h"
extern const recipe::Recipe recipe;
extern const TrainHooks hooks;
extern const plan::Machine machine;
// [trestle/train/planner/choose_plan.h]
// [trestle/train/planner/find_plan.h]
#include <iostream>

#include "trestle/mesh/device_mesh.h"
extern World world;
extern const nn::Layers net;
extern const at::Tensor image, mask;
// [trestle/cli/background_output.h]
#include <chrono>
#include <iostream>
// [trestle/tensor_parallel/vocabulary_shard.h]
extern const TensorRanks ranks;
// [trestle/tensor_parallel/vocabulary_cross_entropy.h]
extern const TensorRanks ranks;
extern const at::Tensor own_scores, target;
// [trestle/tensor_parallel/split_plan.h]
#include <iostream>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "trestle/comm/world.h"
#include "trestle/parallel/parallelize.h"
extern World world;
// [trestle/tensor_parallel/column_linear.h]
#include <ATen/Functions.h>

#include "trestle/comm/world.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/row_linear.h"
extern World world;
extern const TensorRanks ranks;
extern const at::Tensor x;
extern ColumnLinear head;
// [trestle/tensor_parallel/row_linear.h]
#include <ATen/Functions.h>

#include "trestle/tensor_parallel/column_linear.h"
extern const TensorRanks ranks;
extern const at::Tensor x;
extern ColumnLinear up;
// [trestle/tensor_parallel/vocabulary_embedding.h]
#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/column_linear.h"
extern const World world;
extern const TensorRanks ranks;
extern const at::Tensor ids;
