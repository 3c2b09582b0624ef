#include <algorithm>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

namespace {

// The level of sharding over the data-parallel ranks, and the flag that sets it.
std::pair<std::string, std::string> shard_level(Reading& reading) {
  if (reading.has("--use-torch-fsdp2")) return {"parameters", "--use-torch-fsdp2"};
  if (reading.has("--use-megatron-fsdp")) {
    const std::string strategy =
        reading.word_or("--data-parallel-sharding-strategy", "optim_grads_params",
                        {"no_shard", "optim", "optim_grads", "optim_grads_params"});
    reading.has("--use-distributed-optimizer");  // --use-megatron-fsdp includes it
    const std::string why = reading.source("--data-parallel-sharding-strategy") + " " + strategy;
    if (strategy == "optim") return {"optimizer_state", why};
    if (strategy == "optim_grads") return {"gradients", why};
    return {strategy == "no_shard" ? "none" : "parameters", why};
  }
  if (reading.has("--use-distributed-optimizer"))
    return {"optimizer_state", "--use-distributed-optimizer"};
  return {"none", ""};
}

void map_data_parallel(Reading& reading, const Sizes& sizes, RecipeText& out) {
  const auto [level, why] = shard_level(reading);
  std::int64_t replicas = 1;
  if (level != "none")
    replicas = reading.integer_or("--num-distributed-optimizer-instances", 1, {1, 100'000});
  if (sizes.data_parallel % replicas != 0) {
    reading.problem(text("--num-distributed-optimizer-instances ", replicas, " does not divide ",
                         sizes.data_parallel, " data-parallel ranks, which ",
                         divisors_of(sizes.data_parallel), " divide"));
    replicas = 1;
  }
  const bool shards = level != "none" && sizes.data_parallel / replicas > 1;
  if (!shards) {
    if (level != "none") reading.note(why + ": the data-parallel ranks that would shard are one");
    if (sizes.data_parallel > 1)
      out.set("replicate", sizes.data_parallel, "data parallel: the ranks that are left");
    return;
  }
  if (replicas > 1) out.set("replicate", replicas, "--num-distributed-optimizer-instances");
  out.set("shard", sizes.data_parallel / replicas, "data parallel: the ranks that are left");
  out.set("shard_level", level, why);
}

void map_mesh(Reading& reading, const Sizes& sizes, RecipeText& out) {
  out.begin("mesh");
  if (sizes.pipeline > 1 || sizes.tensor > 1 || sizes.data_parallel > 1)
    out.set("pipeline", sizes.pipeline, reading.source("--pipeline-model-parallel-size"));
  map_data_parallel(reading, sizes, out);
  const bool sequence = reading.has("--sequence-parallel");
  if (sizes.tensor == 1) {
    if (sequence) reading.note("--sequence-parallel: one tensor rank has the whole sequence");
    return;
  }
  out.set("tensor", sizes.tensor, "--tensor-model-parallel-size");
  if (sequence) out.set("sequence_parallel", true, "--sequence-parallel");
}

// The stages of each rank, which Megatron-LM calls virtual.
std::int64_t stages_of_rank(Reading& reading, const Sizes& sizes) {
  const std::string by_layers = "--num-layers-per-virtual-pipeline-stage";
  const std::string by_number = "--num-virtual-stages-per-pipeline-rank";
  const auto layers = reading.integer(by_layers, {});
  const auto number = reading.integer(by_number, {});
  if (!layers && !number) return 1;
  if (layers && number) reading.problem(by_layers + " and " + by_number + ": give one of them");
  if (sizes.pipeline < 2)
    reading.problem((layers ? by_layers : by_number) +
                    " needs --pipeline-model-parallel-size above 1");
  if (number) return *number;
  if (sizes.layers % (sizes.pipeline * *layers) != 0) {
    reading.problem(text(by_layers, " ", *layers, " x --pipeline-model-parallel-size ",
                         sizes.pipeline, " does not divide --num-layers ", sizes.layers));
    return 1;
  }
  return sizes.layers / (sizes.pipeline * *layers);
}

// The blocks of each stage: equal, but for the first and last stage on request.
std::vector<std::int64_t> blocks_of_stages(Reading& reading, const Sizes& sizes,
                                           std::int64_t stages_of_rank) {
  constexpr Reading::Integers any{0, Reading::many};
  const auto first = reading.integer("--decoder-first-pipeline-num-layers", any);
  const auto last = reading.integer("--decoder-last-pipeline-num-layers", any);
  const std::int64_t given = (first ? 1 : 0) + (last ? 1 : 0);
  const std::int64_t stages = sizes.pipeline * stages_of_rank - given;
  if (given > 0 && stages_of_rank > 1)
    reading.problem(
        "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers size a rank's "
        "only stage: leave them out with several stages on a rank");
  const std::int64_t blocks = sizes.layers - first.value_or(0) - last.value_or(0);
  if (blocks < stages || (stages == 0 ? blocks != 0 : blocks % stages != 0)) {
    if (given == 0)
      reading.problem(text("--num-layers ", sizes.layers, " over ", stages,
                           " stages: equal stages need a multiple, or "
                           "--decoder-first-pipeline-num-layers and "
                           "--decoder-last-pipeline-num-layers; --pipeline-model-parallel-size ",
                           divisors_of(sizes.layers), " divide them"));
    else if (stages < 1)
      reading.problem(
          text("--decoder-first-pipeline-num-layers and "
               "--decoder-last-pipeline-num-layers name ",
               sizes.layers - blocks, " of --num-layers ", sizes.layers,
               " for all stages of --pipeline-model-parallel-size ", sizes.pipeline,
               ": name all layers, or give more stages"));
    else
      reading.problem(text("--num-layers ", sizes.layers, ": the first and last stage leave ",
                           std::max<std::int64_t>(blocks, 0), " for ", stages,
                           stages == 1 ? " other stage, which needs at least 1"
                                       : text(" other stages, which need a multiple of ", stages)));
    return {};
  }
  std::vector<std::int64_t> of_stages;
  if (first) of_stages.push_back(*first);
  for (std::int64_t i = 0; i < stages; ++i) of_stages.push_back(blocks / stages);
  if (last) of_stages.push_back(*last);
  return of_stages;
}

// The names of the first blocks of each stage.
std::vector<std::string> first_blocks(const std::vector<std::int64_t>& of_stages,
                                      std::int64_t count) {
  std::vector<std::string> names;
  std::int64_t block = 0;
  for (const std::int64_t blocks : of_stages) {
    for (std::int64_t i = 0; i < std::min(blocks, count); ++i)
      names.push_back(text("blocks.", block + i));
    block += blocks;
  }
  return names;
}

// Megatron-LM refuses the same.
void map_split_recomputed(Reading& reading, const Sizes& sizes, bool is_full, RecipeText& out) {
  const std::string flag = "--distribute-saved-activations";
  if (!reading.has(flag)) return;
  if (!is_full) reading.problem(flag + " needs --recompute-granularity full");
  if (sizes.tensor == 1) reading.problem(flag + " needs --tensor-model-parallel-size above 1");
  if (reading.has("--sequence-parallel"))
    reading.problem(flag +
                    " does not work with --sequence-parallel, with which each tensor rank "
                    "keeps the tokens that it has");
  out.set("split_recomputed", true, flag);
}

void map_recomputation(Reading& reading, const Sizes& sizes,
                       const std::vector<std::int64_t>& of_stages, RecipeText& out) {
  using Names = std::vector<std::string>;
  const bool is_full = reading.word_or("--recompute-granularity", "") == "full";
  map_split_recomputed(reading, sizes, is_full, out);
  const bool short_form = reading.has("--recompute-activations");
  const std::string granularity = reading.word_or(
      "--recompute-granularity", short_form ? "selective" : "", {"selective", "full"});
  if (granularity.empty()) return;
  if (granularity == "selective") {
    if (reading.has("--recompute-method"))
      reading.problem("--recompute-method is one of --recompute-granularity full");
    for (const std::string& module : reading.words("--recompute-modules"))
      if (module != "core_attn")
        reading.problem(text("--recompute-modules '", on_one_line(module),
                             "': trestle recomputes core_attn, and whole blocks with "
                             "--recompute-granularity full"));
    return out.set("checkpoint", Names{"attention"},
                   short_form ? "--recompute-activations: the core of attention"
                              : "--recompute-granularity selective: the core of attention");
  }
  const std::string method = reading.word_or("--recompute-method", "", {"uniform", "block"});
  const std::int64_t count = reading.integer_or("--recompute-num-layers", 1, {});
  if (method.empty())
    reading.problem("--recompute-granularity full needs --recompute-method uniform or block");
  if (method == "block")
    return out.set("checkpoint", first_blocks(of_stages, count),
                   text("--recompute-method block: the first ", count, " of each stage"));
  if (count > 1)
    reading.note(text("--recompute-num-layers ", count,
                      ": each block is recomputed alone; 'checkpoint_segments' in [pipeline] joins "
                      "blocks"));
  out.set("checkpoint", Names{"blocks"}, "--recompute-granularity full");
}

}  // namespace

void map_ranks(Reading& reading, const Sizes& sizes, RecipeText& out) {
  map_mesh(reading, sizes, out);
  out.begin("pipeline");
  const std::int64_t each = stages_of_rank(reading, sizes);
  const std::vector<std::int64_t> blocks = blocks_of_stages(reading, sizes, each);
  if (sizes.pipeline > 1) {
    if (!blocks.empty()) {
      std::vector<std::int64_t> layers = blocks;
      layers.front() += 1;
      layers.back() += 2;
      out.set("balance", layers, "blocks, with the embedding first, and norm and head last");
    }
    out.set("schedule", std::string(each > 1 ? "interleaved_1f1b" : "1f1b"),
            "--pipeline-model-parallel-size");
    if (each > 1) out.set("stages_per_rank", each, "virtual stages");
    out.set("micro_batches", sizes.micro_batches,
            text("batch / (micro-batch of ", sizes.micro_batch, " x ", sizes.data_parallel,
                 " data parallel)"));
  }
  map_recomputation(reading, sizes, blocks, out);
}

}  // namespace trestle::megatron
