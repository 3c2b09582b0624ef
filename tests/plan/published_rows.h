#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/plan/published_picture.h"
#include "tests/plan/vtrain.h"
#include "trestle/plan/conv/conv_models.h"
#include "trestle/plan/conv/planned_layers.h"
#include "trestle/plan/gpt/known_models.h"

// Published steps on H100 and P40, and their predictions with the installed machine files. Each
// device has one constant that was chosen by these rows: matrix_efficiency. Left out, because the
// planner has no model of them: fp8 and context parallelism (torchtitan), AmoebaNet-D (torchgpipe),
// and the strong scaling of 175 B, of which only the ends are printed (Megatron-Core).
namespace trestle::plan::published {

inline Machine machine(const std::string& name) {
  return read_machine(std::string(TRESTLE_SOURCE_DIR) + "/machines/" + name + ".toml");
}

// ---- declared factors: assumed ----

// Products and the tensor ranks' messages that belong to them run in chunks at the same time
// (torchtitan's asynchronous tensor parallelism, Megatron's --tp-comm-overlap).
constexpr double hidden_tensor_messages = 0.5;
// torch.compile fuses what lies between products. Two of these rows have 6667 / 5762 = 1.157.
constexpr double compile_speed_up = 1.15;

inline Machine with_hidden_messages(Machine machine) {
  machine.hidden_tensor = {.value = hidden_tensor_messages, .from = "declared"};
  return machine;
}

// All computation of a device by this factor faster.
inline Machine faster(Machine machine, double factor) {
  machine.peak.value *= factor;
  machine.memory_bandwidth.value *= factor;
  machine.transformer.layer_floor.value /= factor;
  return machine;
}

// The share by which "selective op" recomputation lengthens a block: half of the forward's products
// of matrices are repeated, and attention is not.
inline double selective_op_factor(const GptModel& model) {
  const double matrices = matrix_flops(model);
  const double forward = matrices + 4.0 * static_cast<double>(model.sequence * model.hidden);
  return (3 * forward + matrices / 2) / (3 * forward);
}

// ---- torchtitan: docs/performance.md and the report of June 2025 ----

struct TitanRow {
  const char* name;
  const char* model;
  int tensor, data, local_batch;
  bool selective_op;  // otherwise whole blocks
  bool compile, async_tensor;
  double tokens_per_second;  // of a device
  double gibibytes;          // the printed peak; 0 = none
};
// 8,192 tokens, bf16, without context parallelism.
constexpr TitanRow titan_rows[] = {
    {"8B on 8", "llama-3-8b", 1, 8, 2, true, false, false, 5762, 82.4},
    {"8B on 8, compile", "llama-3-8b", 1, 8, 2, true, true, false, 6667, 77.0},
    {"8B on 128", "llama-3-8b", 1, 128, 2, true, false, false, 5605, 67.0},
    {"8B on 128, compile", "llama-3-8b", 1, 128, 2, true, true, false, 6514, 62.0},
    {"70B on 256, tensor 8", "llama-3-70b", 8, 32, 16, false, true, false, 597.3, 0},
    {"70B on 256, tensor 8, async", "llama-3-70b", 8, 32, 16, false, true, true, 652.4, 0},
    {"8B on 64, tensor 8", "llama-3-8b", 8, 8, 12, true, true, false, 4378, 0},
    {"8B on 64, tensor 8, async", "llama-3-8b", 8, 8, 12, true, true, true, 4809.4, 0}};

inline KnownStep step_of(const TitanRow& row) {
  KnownStep step{
      .model = parse_known_model(row.model),
      .strategy = {.tensor = row.tensor,
                   .data = row.data,
                   .level = 3,
                   .micro_batch = row.local_batch,
                   .recompute = row.selective_op ? BlockRecompute::None : BlockRecompute::All,
                   .sequence_parallel = row.tensor > 1},
      .batch = std::int64_t{row.data} * row.local_batch};
  step.seconds = row.local_batch * 8192.0 / row.tensor / row.tokens_per_second;
  return step;
}

inline Machine machine_of(const TitanRow& row, Machine machine) {
  double factor = row.compile ? compile_speed_up : 1;
  if (row.selective_op) factor /= selective_op_factor(parse_known_model(row.model));
  machine = faster(std::move(machine), factor);
  return row.async_tensor ? with_hidden_messages(std::move(machine)) : machine;
}

inline std::vector<ComparedPoint> titan_points(const Machine& machine) {
  vtrain::Predictor predict;
  std::vector<ComparedPoint> points;
  for (const TitanRow& row : titan_rows) {
    const KnownStep step = step_of(row);
    points.push_back(
        {step.seconds, predict(machine_of(row, machine), step), text("torchtitan ", row.name)});
  }
  return points;
}

// ---- Megatron-Core r0.8.0: the table in its README ----

struct CoreRow {
  const char* name;
  int heads, hidden, layers, tensor, pipeline, devices, batch;
  double teraflops;  // of a device
};
// 4,096 tokens, a vocabulary of 131,072, 48 data ranks with a sharded optimizer, messages overlap.
constexpr CoreRow core_rows[] = {{"1.7B", 16, 2048, 24, 1, 1, 48, 192, 408.8},
                                 {"7.1B", 32, 4096, 30, 2, 1, 96, 192, 465.9},
                                 {"16B", 48, 6144, 32, 4, 1, 192, 192, 489.1},
                                 {"32B", 56, 7168, 48, 8, 1, 384, 192, 459.6},
                                 {"70B", 64, 8192, 84, 8, 2, 768, 384, 419.7},
                                 {"119B", 80, 10240, 92, 8, 4, 1536, 768, 420.5},
                                 {"177B", 96, 12288, 96, 8, 6, 2304, 1152, 432.8},
                                 {"314B", 128, 16384, 96, 8, 8, 3072, 1536, 474.4},
                                 {"462B", 144, 18432, 112, 8, 16, 6144, 3072, 459.9}};

// The table leaves the micro-batch open, and whether the schedule is interleaved. Assumed: one
// example, and it is not.
inline KnownStep step_of(const CoreRow& row) {
  KnownStep step{.model = {.layers = row.layers,
                           .hidden = row.hidden,
                           .heads = row.heads,
                           .sequence = 4096,
                           .vocabulary = 131072,
                           .flash = true},
                 .strategy = {.tensor = row.tensor,
                              .pipeline = row.pipeline,
                              .data = 48,
                              .level = 1,
                              .micro_batch = 1,
                              .sequence_parallel = row.tensor > 1},
                 .batch = row.batch};
  step.seconds = model_flops(step.model, row.batch) / (row.devices * row.teraflops * 1e12);
  return step;
}

inline std::vector<ComparedPoint> core_points(const Machine& machine) {
  vtrain::Predictor predict;
  const Machine overlapping = with_hidden_messages(machine);
  std::vector<ComparedPoint> points;
  for (const CoreRow& row : core_rows) {
    const KnownStep step = step_of(row);
    points.push_back({step.seconds, predict(overlapping, step), text("Megatron-Core ", row.name)});
  }
  return points;
}

// ---- torchgpipe: docs/benchmarks.rst ----

struct GpipeRow {
  const char* name;
  const char* model;
  int batch, chunks;
  std::vector<int> balance;  // empty: one device, no recomputation
  double samples_per_second;
};
inline const std::vector<GpipeRow>& gpipe_rows() {
  static const std::vector<GpipeRow> rows = {
      {"U-Net, 1 device", "unet", 40, 1, {}, 28.500},
      {"U-Net, 1 stage", "unet", 80, 2, {241}, 24.456},
      {"U-Net, 2 stages", "unet", 512, 32, {104, 137}, 35.502},
      {"U-Net, 4 stages", "unet", 512, 16, {30, 66, 84, 61}, 67.042},
      {"U-Net, 8 stages", "unet", 640, 40, {16, 27, 31, 44, 22, 57, 27, 17}, 88.497},
      {"ResNet-101, 1 device", "resnet101", 118, 1, {}, 95.862},
      {"ResNet-101, 1 stage", "resnet101", 220, 2, {370}, 81.796},
      {"ResNet-101, 2 stages", "resnet101", 25000, 1667, {135, 235}, 135.539},
      {"ResNet-101, 4 stages", "resnet101", 5632, 256, {44, 92, 124, 110}, 265.958},
      {"ResNet-101, 8 stages", "resnet101", 5400, 150, {26, 22, 33, 44, 44, 66, 66, 69}, 411.662}};
  return rows;
}

inline LayerList layers_of(const GpipeRow& row) {
  return std::string(row.model) == "unet" ? unet_list({}) : resnet101_list();
}

inline Strategy strategy_of(const GpipeRow& row) {
  return {.pipeline = row.balance.empty() ? 1 : static_cast<int>(row.balance.size()),
          .micro_batch = (row.batch + row.chunks - 1) / row.chunks,
          .recompute = row.balance.empty() ? BlockRecompute::None : BlockRecompute::All,
          .schedule = "gpipe"};
}

inline std::vector<ComparedPoint> gpipe_points(const Machine& machine) {
  std::vector<ComparedPoint> points;
  for (const GpipeRow& row : gpipe_rows()) {
    const PlannedLayers model(layers_of(row), machine,
                              {.optimizer_states = 0, .balance = row.balance});
    const Strategy strategy = strategy_of(row);
    const StrategyCosts costs = model.costs(strategy, row.chunks);
    const double seconds = predict_step(*costs.table, 1, costs).seconds;
    points.push_back({row.batch / row.samples_per_second,
                      seconds * row.batch / (row.chunks * strategy.micro_batch),
                      text("torchgpipe ", row.name)});
  }
  return points;
}

}  // namespace trestle::plan::published
