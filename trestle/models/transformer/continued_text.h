#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trestle/nn/graph.h"

namespace trestle::models {

struct BlockImpl;
struct TokenEmbeddingImpl;

// While it lives, the layers of transformer() continue one text: each forward takes ids [1, T]
// alone, which are the tokens behind those of all forwards before it, and returns their scores. A
// pipeline whose stages are on several ranks thus generates with the keys and values of each rank's
// own blocks. The weights must not change, and forwards are without gradients.
//
// Only modules that exist take part, so that each rank constructs it for its own layers. Not
// installed.
class ContinuedText {
 public:
  explicit ContinuedText(const nn::Graph& graph);
  ~ContinuedText();
  ContinuedText(const ContinuedText&) = delete;
  ContinuedText& operator=(const ContinuedText&) = delete;

 private:
  std::vector<std::shared_ptr<TokenEmbeddingImpl>> embeddings_;
  std::vector<std::shared_ptr<BlockImpl>> blocks_;
};

}  // namespace trestle::models
