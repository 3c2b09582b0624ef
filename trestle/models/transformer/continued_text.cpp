#include "trestle/models/transformer/continued_text.h"

#include "trestle/models/transformer/block.h"
#include "trestle/models/transformer/embedding.h"

namespace trestle::models {

ContinuedText::ContinuedText(const nn::Graph& graph) {
  for (const nn::Layer& layer : graph.layers) {
    const auto module = layer.module.made();
    if (auto embedding = std::dynamic_pointer_cast<TokenEmbeddingImpl>(module)) {
      embedding->tokens_so_far = 0;
      embeddings_.push_back(std::move(embedding));
    }
    if (auto block = std::dynamic_pointer_cast<BlockImpl>(module)) {
      block->cache = std::make_unique<KeyValueCache>();
      blocks_.push_back(std::move(block));
    }
  }
}

ContinuedText::~ContinuedText() {
  for (const auto& embedding : embeddings_) embedding->tokens_so_far.reset();
  for (const auto& block : blocks_) block->cache.reset();
}

}  // namespace trestle::models
