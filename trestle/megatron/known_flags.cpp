#include "trestle/megatron/known_flags.h"

#include <algorithm>
#include <array>

namespace trestle::megatron {

namespace {

using Kind = KnownFlag::Kind;
using Values = KnownFlag::Values;

constexpr KnownFlag read(std::string_view name, Values values = Values::One) {
  return {.name = name, .kind = Kind::Read, .values = values};
}
constexpr KnownFlag read_switch(std::string_view name) { return read(name, Values::None); }
constexpr KnownFlag idle(std::string_view name, Values values, std::string_view instead) {
  return {.name = name, .kind = Kind::Idle, .values = values, .reason = instead};
}
constexpr KnownFlag refused(std::string_view name, std::string_view why) {
  return {.name = name, .kind = Kind::Refused, .values = Values::Several, .reason = why};
}

constexpr std::array read_flags = {
    // the model
    read("--num-layers"), read("--hidden-size"), read("--ffn-hidden-size"),
    read("--num-attention-heads"), read_switch("--group-query-attention"),
    read("--num-query-groups"), read("--kv-channels"), read("--seq-length"),
    read("--max-position-embeddings"), read("--position-embedding-type"),
    read_switch("--use-rotary-position-embeddings"), read_switch("--no-position-embedding"),
    read("--rotary-base"), read("--rotary-percent"), read("--make-vocab-size-divisible-by"),
    read("--vocab-size"), read("--padded-vocab-size"), read_switch("--no-pad-vocab-size"),
    read_switch("--untie-embeddings-and-output-weights"), read_switch("--swiglu"),
    read_switch("--openai-gelu"), read_switch("--no-bias-gelu-fusion"), read("--normalization"),
    read("--norm-epsilon"), read_switch("--disable-bias-linear"), read_switch("--add-qkv-bias"),
    read("--attention-dropout"), read("--hidden-dropout"), read("--init-method-std"),
    // ranks
    read("--tensor-model-parallel-size"), read("--pipeline-model-parallel-size"),
    read_switch("--sequence-parallel"), read_switch("--use-distributed-optimizer"),
    read("--num-distributed-optimizer-instances"), read_switch("--use-megatron-fsdp"),
    read("--data-parallel-sharding-strategy"), read_switch("--use-torch-fsdp2"),
    read("--context-parallel-size"), read("--expert-model-parallel-size"),
    read("--decoder-first-pipeline-num-layers"), read("--decoder-last-pipeline-num-layers"),
    read("--num-layers-per-virtual-pipeline-stage"), read("--num-virtual-stages-per-pipeline-rank"),
    read("--nproc_per_node"), read("--nproc-per-node"), read("--nnodes"),
    // the batch
    read("--micro-batch-size"), read("--global-batch-size"),
    // recomputation
    read("--recompute-granularity"), read("--recompute-method"), read("--recompute-num-layers"),
    read_switch("--recompute-activations"), read("--recompute-modules", Values::Several),
    read_switch("--distribute-saved-activations"),
    // precision
    read_switch("--bf16"), read_switch("--fp16"), read("--loss-scale"),
    read("--initial-loss-scale"), read("--min-loss-scale"), read("--loss-scale-window"),
    read("--hysteresis"), read_switch("--grad-reduce-in-bf16"),
    // the optimizer
    read("--lr"), read("--min-lr"), read("--lr-decay-style"), read("--lr-decay-iters"),
    read("--lr-decay-samples"), read("--lr-warmup-iters"), read("--lr-warmup-samples"),
    read("--lr-warmup-fraction"), read("--lr-warmup-init"), read("--weight-decay"),
    read("--start-weight-decay"), read("--end-weight-decay"), read("--optimizer"),
    read("--adam-beta1"), read("--adam-beta2"), read("--adam-eps"), read("--sgd-momentum"),
    read("--clip-grad"),
    // the run
    read("--train-iters"), read("--train-samples"), read("--seed"),
    read("--data-path", Values::Several), read("--split"), read("--tokenizer-type"),
    read("--tokenizer-model"), read("--vocab-file"), read("--merge-file"), read("--save"),
    read("--load"), read("--save-interval"), read("--eval-interval"), read("--eval-iters"),
    read("--log-interval"), read_switch("--deterministic-mode"), read("--num-workers")};

constexpr std::string_view fused =
    "kernels are chosen by size and device; the numbers are the same";
constexpr std::string_view overlapped = "gradients are always reduced during the backward";
constexpr std::string_view fp32_sums = "gradients are summed and reduced in fp32";
constexpr std::string_view launched = "trestle launch and torchrun start ranks (docs/launch.md)";
constexpr std::string_view logged =
    "metrics.jsonl and TensorBoard's event file in the run's folder have every step";
constexpr std::string_view timeline = "`trestle view RUN` draws the measured timeline";
constexpr std::string_view kernels = "kernels are started one by one";
constexpr std::string_view whole_checkpoints =
    "a checkpoint is read by any mesh, and saved beside the training";

constexpr std::array idle_flags = {
    idle("--use-mcore-models", Values::None, "there is one form of the models"),
    idle("--use-legacy-models", Values::None, "there is one form of the models"),
    idle("--transformer-impl", Values::One, "there is one form of the models"),
    idle("--use-flash-attn", Values::None,
         "libtorch's fused kernel serves attention without dropout"),
    idle("--attention-backend", Values::One, "attention = \"fused\" is libtorch's kernel"),
    idle("--flash-attention-version", Values::One, "attention = \"fused\" is libtorch's kernel"),
    idle("--no-masked-softmax-fusion", Values::None, fused),
    idle("--no-bias-swiglu-fusion", Values::None, fused),
    idle("--no-bias-dropout-fusion", Values::None, fused),
    idle("--no-rope-fusion", Values::None, fused),
    idle("--no-persist-layer-norm", Values::None, fused),
    idle("--no-gradient-accumulation-fusion", Values::None, fused),
    idle("--cross-entropy-loss-fusion", Values::None, fused),
    idle("--cross-entropy-fusion-impl", Values::One, fused),
    idle("--attention-softmax-in-fp32", Values::None, "a softmax is always computed in fp32"),
    idle("--apply-query-key-layer-scaling", Values::None,
         "scores are not divided by the block's number and multiplied by it again"),
    idle("--no-query-key-layer-scaling", Values::None, "scores have no such scaling"),
    idle("--accumulate-allreduce-grads-in-fp32", Values::None, fp32_sums),
    idle("--distributed-backend", Values::One, "NCCL for CUDA devices, Gloo for CPUs"),
    idle("--distributed-timeout-minutes", Values::One, "'deadline' in [pipeline], and --deadline"),
    idle("--local-rank", Values::One, launched),
    idle("--local_rank", Values::One, launched),
    idle("--node_rank", Values::One, launched),
    idle("--node-rank", Values::One, launched),
    idle("--master_addr", Values::One, launched),
    idle("--master-addr", Values::One, launched),
    idle("--master_port", Values::One, launched),
    idle("--master-port", Values::One, launched),
    idle("--rdzv_id", Values::One, launched),
    idle("--rdzv-id", Values::One, launched),
    idle("--rdzv_backend", Values::One, launched),
    idle("--rdzv-backend", Values::One, launched),
    idle("--rdzv_endpoint", Values::One, launched),
    idle("--rdzv-endpoint", Values::One, launched),
    idle("--overlap-grad-reduce", Values::None, overlapped),
    idle("--delay-grad-reduce", Values::None, overlapped),
    idle("--no-delay-grad-reduce", Values::None, overlapped),
    idle("--overlap-param-gather", Values::None, "'reshard' and 'units' in [mesh]"),
    idle("--no-align-param-gather", Values::None, "each stage communicates as it is ready"),
    idle("--ddp-bucket-size", Values::One, "'bucket' in [mesh], in bytes"),
    idle("--ddp-num-buckets", Values::One, "'bucket' in [mesh], in bytes"),
    idle("--ddp-average-in-collective", Values::None,
         "gradients are divided before they are reduced"),
    idle("--ddp-pad-buckets-for-high-nccl-busbw", Values::None, "'bucket' in [mesh], in bytes"),
    idle("--no-overlap-p2p-communication", Values::None, "messages wait where they are needed"),
    idle("--tp-comm-overlap", Values::None, "reductions overlap by events"),
    idle("--no-async-tensor-model-parallel-allreduce", Values::None,
         "reductions overlap by events"),
    idle("--no-scatter-gather-tensors-in-pipeline", Values::None, "messages between stages"),
    idle("--use-cpu-initialization", Values::None,
         "weights are drawn by name and index: the same on every mesh"),
    idle("--use-tp-pp-dp-mapping", Values::None, "the order of ranks changes no number"),
    idle("--dataloader-type", Values::One, "'order' in [data]"),
    idle("--data-impl", Values::One, "token files are mapped into memory"),
    idle("--data-cache-path", Values::One, "token files need no cache"),
    idle("--no-mmap-bin-files", Values::None, "token files are mapped into memory"),
    idle("--num-dataset-builder-threads", Values::One, "token files need no index"),
    idle("--no-create-attention-mask-in-dataloader", Values::None,
         "the causal mask is part of the attention"),
    idle("--no-check-for-nan-in-loss-and-grad", Values::None,
         "fp16 skips steps whose gradients are not finite"),
    idle("--check-for-nan-in-loss-and-grad", Values::None,
         "fp16 skips steps whose gradients are not finite"),
    idle("--apply-layernorm-1p", Values::None,
         "a norm's weight begins at 1, and does not decay: the numbers are the same"),
    idle("--enable-cuda-graph", Values::None, kernels),
    idle("--external-cuda-graph", Values::None, kernels),
    idle("--cuda-graph-impl", Values::One, kernels),
    idle("--cuda-graph-scope", Values::Several, kernels),
    idle("--cuda-graph-modules", Values::Several, kernels),
    idle("--cuda-graph-warmup-steps", Values::One, kernels),
    idle("--use-nccl-ub", Values::None, "libtorch's NCCL chooses its buffers"),
    idle("--profile", Values::None, timeline),
    idle("--profile-step-start", Values::One, timeline),
    idle("--profile-step-end", Values::One, timeline),
    idle("--profile-ranks", Values::Several, timeline),
    idle("--use-pytorch-profiler", Values::None, timeline),
    idle("--save-retain-interval", Values::One, "'keep_best' in [train]"),
    idle("--calculate-per-token-loss", Values::None,
         "the loss is always the mean over all tokens of a step"),
    idle("--manual-gc", Values::None, "there is no garbage collection"),
    idle("--manual-gc-interval", Values::One, "there is no garbage collection"),
    idle("--empty-unused-memory-level", Values::One, "memory is reused"),
    idle("--tensorboard-dir", Values::One, logged),
    idle("--tensorboard-log-interval", Values::One, logged),
    idle("--tensorboard-queue-size", Values::One, logged),
    idle("--log-timers-to-tensorboard", Values::None, logged),
    idle("--log-validation-ppl-to-tensorboard", Values::None, logged),
    idle("--log-memory-to-tensorboard", Values::None, logged),
    idle("--log-loss-scale-to-tensorboard", Values::None, logged),
    idle("--no-log-loss-scale-to-tensorboard", Values::None, logged),
    idle("--log-world-size-to-tensorboard", Values::None, logged),
    idle("--log-params-norm", Values::None, "the gradient's norm is logged"),
    idle("--log-num-zeros-in-grad", Values::None, "the gradient's norm is logged"),
    idle("--log-throughput", Values::None, "each epoch prints tokens/s and FLOP/s"),
    idle("--log-progress", Values::None, "log.txt in the run's folder"),
    idle("--timing-log-level", Values::One, timeline),
    idle("--timing-log-option", Values::One, timeline),
    idle("--logging-level", Values::One, "log.txt in the run's folder"),
    idle("--wandb-project", Values::One, logged),
    idle("--wandb-exp-name", Values::One, logged),
    idle("--wandb-save-dir", Values::One, logged),
    idle("--wandb-entity", Values::One, logged),
    idle("--ckpt-format", Values::One, whole_checkpoints),
    idle("--use-dist-ckpt", Values::None, whole_checkpoints),
    idle("--dist-ckpt-format", Values::One, whole_checkpoints),
    idle("--auto-detect-ckpt-format", Values::None, whole_checkpoints),
    idle("--async-save", Values::None, whole_checkpoints),
    idle("--use-persistent-ckpt-worker", Values::None, whole_checkpoints),
    idle("--ckpt-fully-parallel-save", Values::None, whole_checkpoints),
    idle("--no-ckpt-fully-parallel-save", Values::None, whole_checkpoints),
    idle("--ckpt-fully-parallel-load", Values::None, whole_checkpoints),
    idle("--ckpt-assume-constant-structure", Values::None, whole_checkpoints),
    idle("--dist-ckpt-strictness", Values::One, whole_checkpoints)};

constexpr std::string_view other_activation =
    "the activations are gelu (GPT-2) and --swiglu (Llama)";
constexpr std::string_view one_text =
    "a run trains on one prepared text. `trestle text prepare` takes several sources";
constexpr std::string_view checkpoint_files =
    "Megatron-LM's checkpoints are not read. Convert them to Hugging Face's files, and name these "
    "as 'weights' in [model] (docs/megatron.md)";
constexpr std::string_view documents =
    "rows cross the ends of documents, which the end token marks. Nearest: order = \"documents\" "
    "in [data]";
constexpr std::string_view other_batches =
    "the size of a batch is constant. Give --global-batch-size";
constexpr std::string_view low_precision = "the narrowest types of a training are bf16 and fp16";

constexpr std::array refused_flags = {
    refused(
        "--microbatch-group-size-per-virtual-pipeline-stage",
        "interleaved_1f1b chooses its number from the ranks and the micro-batches. Leave it out"),
    refused("--overlap-param-gather-with-optimizer-step",
            "parameters are gathered before the step's first forward. Leave it out"),
    refused("--pipeline-model-parallel-layout", "give the stages as 'balance' in [pipeline]"),
    refused("--account-for-embedding-in-pipeline-split",
            "give the stages as 'balance' in [pipeline]"),
    refused("--account-for-loss-in-pipeline-split", "give the stages as 'balance' in [pipeline]"),
    refused("--num-experts", "there are no mixtures of experts"),
    refused("--expert-tensor-parallel-size", "there are no mixtures of experts"),
    refused("--multi-latent-attention",
            "there is no latent attention; nearest: "
            "--group-query-attention"),
    refused("--qk-layernorm", "queries and keys have no norms of their own"),
    refused("--squared-relu", other_activation),
    refused("--quick-geglu", other_activation),
    refused("--window-size", "attention sees the whole row"),
    refused("--apply-residual-connection-post-layernorm", "residuals are added before the norm"),
    refused("--fp32-residual-connection",
            "autocast computes residuals in the type of their inputs"),
    refused("--rotary-interleaved", "rotary positions turn halves, as Hugging Face's do"),
    refused("--rotary-seq-len-interpolation-factor",
            "take it from a config.json: 'config' in [transformer], \"rope_type\": \"linear\""),
    refused("--use-rope-scaling",
            "take it from a config.json: 'config' in [transformer], \"rope_type\": \"llama3\""),
    refused("--rope-scaling-factor",
            "take it from a config.json: 'config' in [transformer], \"rope_type\": \"llama3\""),
    refused("--init-method-xavier-uniform",
            "weights are drawn from a normal distribution; "
            "nearest: --init-method-std"),
    refused("--embedding-init-method-std", "all tables and matrices have --init-method-std"),
    refused("--data-parallel-random-init", "replicas have equal weights"),
    refused("--batch-size", "Megatron-LM removed this flag. Use --micro-batch-size"),
    refused("--warmup", "Megatron-LM removed this flag. Use --lr-warmup-fraction"),
    refused("--model-parallel-size",
            "Megatron-LM removed this flag. Use --tensor-model-parallel-size"),
    refused("--checkpoint-activations",
            "Megatron-LM removed this flag. Use --recompute-granularity"),
    refused("--rampup-batch-size", other_batches),
    refused("--step-batch-size-schedule", other_batches),
    refused("--decrease-batch-size-if-needed", other_batches),
    refused("--weight-decay-incr-style", "the weight decay is constant. Give --weight-decay"),
    refused("--decoupled-lr", "nearest: 'rate_factors' in [optimizer], such as [\"embed=0.1\"]"),
    refused("--decoupled-min-lr",
            "nearest: 'rate_factors' in [optimizer], such as [\"embed=0.1\"]"),
    refused("--freeze-all-layers", "nearest: 'frozen' in [optimizer]"),
    refused("--optimizer-cpu-offload", "nearest: 'offload' in [mesh], with --use-megatron-fsdp"),
    refused("--use-precision-aware-optimizer", "an optimizer's state is fp32"),
    refused("--fp16-lm-cross-entropy", "the loss is computed in fp32"),
    refused("--override-opt_param-scheduler", checkpoint_files),
    refused("--use-checkpoint-opt_param-scheduler", checkpoint_files),
    refused("--finetune", checkpoint_files),
    refused("--pretrained-checkpoint", checkpoint_files),
    refused("--use-checkpoint-args", checkpoint_files),
    refused("--no-load-optim", checkpoint_files),
    refused("--no-load-rng", checkpoint_files),
    refused("--no-save-optim", "a checkpoint has all that a run needs to resume"),
    refused("--no-save-rng", "a checkpoint has all that a run needs to resume"),
    refused("--exit-interval", "nearest: --max-steps of trestle train"),
    refused("--exit-duration-in-mins", "nearest: --max-steps of trestle train"),
    refused("--skip-train", "nearest: trestle evaluate"),
    refused("--mock-data",
            "a run needs a text. Nearest: any file, with `trestle text prepare "
            "FILE --tokenizer bytes`"),
    refused("--train-data-path", one_text),
    refused("--valid-data-path", one_text),
    refused("--test-data-path", one_text),
    refused("--data-args-path", one_text),
    refused("--per-split-data-args-path", one_text),
    refused("--reset-position-ids", documents),
    refused("--reset-attention-mask", documents),
    refused("--eod-mask-loss", documents),
    refused("--spec",
            "nearest: a model of your own "
            "(docs/your_own_model.md)"),
    refused("--yaml-cfg", "give the flags themselves")};

struct Family {
  std::string_view begins, why;
};
constexpr std::array families = {
    Family{"--moe-", "there are no mixtures of experts"},
    Family{"--expert-", "there are no mixtures of experts"},
    Family{"--fp8", low_precision},
    Family{"--fp4", low_precision},
    Family{"--mtp-", "one token is predicted, the next one"},
    Family{"--hybrid-", "every block is attention and an MLP"},
    Family{"--mamba-", "every block is attention and an MLP"},
    Family{"--inference-", "nearest: trestle generate (docs/language_models.md)"},
    Family{"--rl-", "the loss is that of the next token"},
    Family{"--grpo-", "the loss is that of the next token"},
    Family{"--fim-", "the loss is that of the next token"},
    Family{"--vision-", "this is the recipe of a language model"},
    Family{"--bert-", "this is the recipe of GPT-2 or Llama"},
    Family{"--yarn-", "there is no YaRN; nearest: rope_type llama3 or linear of a config.json"},
    Family{"--muon-", "the optimizers are adam and sgd"},
    Family{"--lion-", "the optimizers are adam and sgd"},
    Family{"--lr-wsd-", "the decays are constant, linear and cosine"}};

}  // namespace

const std::vector<KnownFlag>& known_flags() {
  static const std::vector<KnownFlag> all = [] {
    std::vector<KnownFlag> flags(read_flags.begin(), read_flags.end());
    flags.insert(flags.end(), idle_flags.begin(), idle_flags.end());
    flags.insert(flags.end(), refused_flags.begin(), refused_flags.end());
    return flags;
  }();
  return all;
}

const KnownFlag* find_known(std::string_view name) {
  const auto& all = known_flags();
  const auto found = std::ranges::find(all, name, &KnownFlag::name);
  return found == all.end() ? nullptr : &*found;
}

std::string_view why_family_is_refused(std::string_view name) {
  for (const Family& family : families)
    if (name.starts_with(family.begins)) return family.why;
  return {};
}

}  // namespace trestle::megatron
