#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trestle/base/units.h"

// The bytes that a block of a transformer holds, by formulas, for one micro-batch on one tensor
// rank. transformer_traffic.h has the bytes that it sends.
//
//   const plan::BlockSizes sizes{.batch = 2, .tokens = 256, .width = 128, .heads = 4,
//                                .kv_heads = 4, .head_size = 32, .mlp = 512};
//   const Bytes kept = plan::total_of(plan::kept_by_block(sizes, {.tensor = 2}));
namespace trestle::plan {

// The forms of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models", table 2.
enum class PublishedForm {
  Plain,                    // s b h (34 + 5 a s / h)
  Tensor,                   // s b h (10 + 24 / t + 5 a s / (h t))
  TensorSequence,           // s b h / t (34 + 5 a s / h)
  TensorSelective,          // s b h (10 + 24 / t)
  TensorSequenceSelective,  // s b h 34 / t
  Whole,                    // s b h 2: whole blocks are recomputed
  WholeSplit,               // s b h 2 / t: and tensor ranks share their inputs
};

struct PublishedSizes {
  double tokens = 0;  // s
  double batch = 0;   // b, of a micro-batch
  double width = 0;   // h
  double heads = 0;   // a
  double tensor = 1;  // t
};

// The activations of one layer of GPT in bf16, in bytes: dropout at three places with masks of one
// byte, attention with a written softmax, an MLP of width 4 h.
double published_activation_bytes(PublishedForm form, const PublishedSizes& sizes);

struct PublishedPipeline {
  double layers = 0;  // of the model
  double stages = 1;  // p
  double chunks = 1;  // v, the model chunks of a device; above 1 the schedule is interleaved 1F1B
};

// The activations of the first stage, which has the most: those of p micro-batches of layers / p
// layers, and 1 + (p - 1) / (p v) times that for the interleaved schedule (section 4.2.3 there).
double published_first_stage_bytes(PublishedForm form, const PublishedSizes& sizes,
                                   const PublishedPipeline& pipeline);

// Weights and gradients in bf16, gradients in fp32, and Adam's fp32 weights and two averages: 18
// bytes for each of 12 h^2 parameters of a layer. It counts neither biases nor embeddings.
double published_state_bytes(const PublishedSizes& sizes, const PublishedPipeline& pipeline);

// ---- trestle's own blocks (models/transformer/block.h) ----

struct BlockSizes {
  enum class Style { Gpt2, Llama };  // layer norm and an MLP; RMS norm, rotation and a gated MLP

  Style style = Style::Gpt2;
  std::int64_t batch = 1;   // rows of the micro-batch
  std::int64_t tokens = 1;  // of each row
  std::int64_t width = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_size = 1;
  std::int64_t mlp = 1;  // inner width
};

struct BlockSettings {
  enum class Numbers {
    Float32,
    BFloat16,  // TransformerOptions::type
    Autocast,  // bf16 products of fp32 weights; the sums of the blocks are fp32
  };
  enum class Core { Fused, Written };
  enum class Recompute { Nothing, Attention, Block };

  Numbers numbers = Numbers::BFloat16;
  Core core = Core::Fused;
  Recompute recompute = Recompute::Nothing;
  bool residual_dropout = false;   // of the attention's and of the MLP's output
  bool attention_dropout = false;  // of the attention's weights; Written
  int tensor = 1;                  // ranks that split the block, a number of models::tensor_sizes()
  bool sequence = false;           // norms, dropout and sums on shards of the tokens
  // Recompute::Block: each rank keeps a share of the block's input (checkpoint_layers.h).
  bool split_input = false;
};

struct KeptTensor {
  std::string_view name;
  Bytes bytes = 0;
};

// The tensors that a block's graph keeps from its forward to its backward on tensor rank 0, which
// has the largest shards. The block's input is among them, and its output is not: the next block
// counts it. Rows have no documents (places).
//
// With GPT in bf16, the written core, dropout at its three places, and two rows and two heads of a
// rank or more, these are the published formula's, plus two statistics of each normed token: 8 s b
// bytes in all.
//
// Throws UsageError for sizes below 1, and for heads that `tensor` does not divide.
std::vector<KeptTensor> kept_by_block(const BlockSizes& sizes, const BlockSettings& settings);

Bytes total_of(const std::vector<KeptTensor>& kept);

// The number of a block's parameters on tensor rank 0: matrices with their biases, and norms. Those
// of GPT have biases, those of Llama have none.
struct BlockParameters {
  std::int64_t matrices = 0;  // of the four projections, without biases
  std::int64_t biases = 0;    // slices for queries, keys, values and the first layer of the MLP
  std::int64_t norms = 0;     // whole on each rank
  std::int64_t total() const { return matrices + biases + norms; }
};
BlockParameters parameters_of_block(const BlockSizes& sizes, int tensor);

// The bytes of one parameter in a rank's memory.
struct StateBytes {
  double weight = 4;
  double gradient = 4;
  double optimizer = 8;  // Adam's two averages in fp32
  double total() const { return weight + gradient + optimizer; }
};

// Weights, gradients and the optimizer's state of `layers` blocks on one rank.
Bytes state_bytes(const BlockParameters& block, std::int64_t layers, const StateBytes& state = {});

}  // namespace trestle::plan
