#include "trestle/plan/transformer_memory.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/block_widths.h"

namespace trestle::plan {

// Per layer, in units of s b h bytes with 2 bytes for a number (section 4.1 there):
//
//     attention   11 + 5 a s / h   input of q, k, v: 2; q and k: 4; softmax: 2 a s / h; the mask
//                                  of its dropout: a s / h; the output of its dropout: 2 a s / h;
//                                  v: 2; input of the projection: 2; mask of the dropout: 1
//     MLP         19               input: 2; gelu's input: 8; second layer's input: 8; mask: 1
//     norms       4                two inputs: 2 each
//
// Tensor ranks split all but the inputs of q, k, v and of the MLP, the norms' inputs and the two
// masks, which are 10. Sequence parallelism splits those too. Selective recomputation drops what
// lies between q, k and the product with v: 5 a s / h.
double published_activation_bytes(PublishedForm form, const PublishedSizes& sizes) {
  const double sbh = sizes.tokens * sizes.batch * sizes.width, t = sizes.tensor;
  const double core = 5 * sizes.heads * sizes.tokens / sizes.width;
  switch (form) {
    case PublishedForm::Plain:
      return sbh * (34 + core);
    case PublishedForm::Tensor:
      return sbh * (10 + 24 / t + core / t);
    case PublishedForm::TensorSequence:
      return sbh / t * (34 + core);
    case PublishedForm::TensorSelective:
      return sbh * (10 + 24 / t);
    case PublishedForm::TensorSequenceSelective:
      return sbh * 34 / t;
    case PublishedForm::Whole:
      return sbh * 2;
    case PublishedForm::WholeSplit:
      return sbh * 2 / t;
  }
  return 0;
}

double published_first_stage_bytes(PublishedForm form, const PublishedSizes& sizes,
                                   const PublishedPipeline& pipeline) {
  const double p = pipeline.stages, v = pipeline.chunks;
  const double more = v > 1 ? 1 + (p - 1) / (p * v) : 1;
  return published_activation_bytes(form, sizes) * pipeline.layers * more;
}

double published_state_bytes(const PublishedSizes& sizes, const PublishedPipeline& pipeline) {
  const double parameters = 12 * sizes.width * sizes.width * pipeline.layers;
  return 18 * parameters / (sizes.tensor * pipeline.stages);
}

namespace {

using Recompute = BlockSettings::Recompute;
using Core = BlockSettings::Core;
using Numbers = BlockSettings::Numbers;

class Keeper {
 public:
  Keeper(const BlockSizes& sizes, const BlockSettings& settings)
      : sizes_(sizes), settings_(settings), of_(widths_of(sizes, settings)) {}

  std::vector<KeptTensor> block() {
    const std::int64_t input = of_.own_tokens * sizes_.width;
    add("the block's input",
        (shares_input(settings_) ? share_of(input, settings_) : input) * of_.sum);
    if (settings_.recompute == Recompute::Block) return std::move(kept_);
    norm("the statistics of the attention's norm");
    add("the attention's input", of_.own_tokens * sizes_.width * of_.product);
    attention();
    dropout_mask("the mask of the attention's dropout");
    add("the sum behind the attention", of_.own_tokens * sizes_.width * of_.sum);
    norm("the statistics of the MLP's norm");
    add("the MLP's input", of_.own_tokens * sizes_.width * of_.product);
    mlp();
    dropout_mask("the mask of the MLP's dropout");
    // Autocast rounds the fp32 weights for the products, and the backward needs them again.
    if (settings_.numbers == Numbers::Autocast)
      add("the matrices in bf16", parameters_of_block(sizes_, settings_.tensor).matrices * 2);
    return std::move(kept_);
  }

 private:
  bool llama() const { return sizes_.style == BlockSizes::Style::Llama; }
  void add(std::string_view name, Bytes bytes) {
    if (bytes > 0) kept_.push_back({name, bytes});
  }

  // Layer norm keeps mean and deviation in the type of its input, RMS norm a scale in fp32.
  void norm(std::string_view name) { add(name, of_.own_tokens * (llama() ? 4 : 2 * of_.sum)); }

  void dropout_mask(std::string_view name) {
    if (settings_.residual_dropout) add(name, of_.own_tokens * sizes_.width);
  }

  void attention() {
    const std::int64_t d = sizes_.head_size, q = of_.heads * d, kv = of_.kv_heads * d;
    if (llama()) add("cosines and sines", sizes_.tokens * d * 4);
    if (settings_.recompute == Recompute::Attention) {
      add("queries, keys and values", of_.tokens * (q + 2 * kv) * of_.product);
    } else if (settings_.core == Core::Fused) {
      fused(q, kv);
    } else {
      written(q, kv);
    }
    add("the input of the attention's projection", of_.tokens * q * of_.product);
  }

  // Fewer keys than queries are repeated by a copy. A single head of keys is read again in place.
  bool repeats(std::int64_t q, std::int64_t kv) const { return q != kv && of_.kv_heads > 1; }

  // The kernel keeps its arguments. They are views of one product (Gpt2), or of the rotated queries
  // and keys.
  void fused(std::int64_t q, std::int64_t kv) {
    const std::int64_t views = llama() ? q + kv : q + 2 * kv;
    const std::int64_t copies = repeats(q, kv) ? 2 * q : llama() ? kv : 0;
    add("queries, keys and values", of_.tokens * (views + copies) * of_.product);
    add("the logarithms of the softmax's sums", of_.heads * of_.tokens * 4);
  }

  // The products take matrices in order, so each argument is copied. Those of one row or one head
  // are in order already: keys and values are views then. Queries are scaled first.
  void written(std::int64_t q, std::int64_t kv) {
    const bool copies = (sizes_.batch > 1 && of_.heads > 1) || repeats(q, kv);
    add("queries, keys and values", of_.tokens * (copies ? 3 * q : q + q + 2 * kv) * of_.product);
    const std::int64_t scores = of_.heads * sizes_.batch * sizes_.tokens * sizes_.tokens;
    const bool drops = settings_.attention_dropout;
    add("the softmax", scores * of_.score);
    if (drops) add("the mask of the weights' dropout", scores);
    // Without dropout and rounding it is the softmax itself.
    if (drops || of_.score != of_.product) add("the attention's weights", scores * of_.product);
  }

  // Gelu keeps its input. The gated MLP keeps gate and up, the activated gate, and their product.
  void mlp() {
    const std::int64_t inner = of_.tokens * of_.mlp * of_.product;
    if (llama()) {
      add("gate and up", 2 * inner);
      add("the activated gate", inner);
    } else {
      add("the activation's input", inner);
    }
    add("the input of the MLP's last layer", inner);
  }

  BlockSizes sizes_;
  BlockSettings settings_;
  BlockWidths of_;
  std::vector<KeptTensor> kept_;
};

}  // namespace

std::vector<KeptTensor> kept_by_block(const BlockSizes& sizes, const BlockSettings& settings) {
  return Keeper(sizes, settings).block();
}

Bytes total_of(const std::vector<KeptTensor>& kept) {
  Bytes sum = 0;
  for (const KeptTensor& one : kept) sum += one.bytes;
  return sum;
}

BlockParameters parameters_of_block(const BlockSizes& sizes, int tensor) {
  const BlockWidths of = widths_of(sizes, {.tensor = tensor});
  const bool llama = sizes.style == BlockSizes::Style::Llama;
  const std::int64_t in = of.heads * sizes.head_size + 2 * of.kv_columns;
  const std::int64_t up = (llama ? 2 : 1) * of.mlp, h = sizes.width;
  return {.matrices = h * (in + of.heads * sizes.head_size + up + of.mlp),
          .biases = llama ? 0 : in + h + up + h,
          .norms = llama ? 2 * h : 4 * h};
}

Bytes state_bytes(const BlockParameters& block, std::int64_t layers, const StateBytes& state) {
  return static_cast<Bytes>(state.total() * static_cast<double>(block.total() * layers));
}

}  // namespace trestle::plan
