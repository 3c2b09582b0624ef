#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "trestle/models/transformer/config.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/layers.h"

// A transformer that continues text.
//
//   trestle::generate::LanguageModel model(net, config);  // net = models::transformer(config)
//   auto state = model.begin();
//   at::Tensor scores = model.extend(state, prompt);      // of the token after the prompt
//   scores = model.extend(state, {next});                 // of the token after that
namespace trestle::generate {

class LanguageModel {
 public:
  // The keys and values of all tokens of one text so far.
  class State {
   public:
    std::int64_t tokens() const { return tokens_; }

   private:
    friend class LanguageModel;
    struct Caches;
    std::shared_ptr<Caches> caches_;
    std::int64_t tokens_ = 0;
  };

  // Layers of models::transformer(config), which are shared, not copied. They may be on several
  // devices, as the stages of a pipeline: values move with the text. Throws UsageError for other
  // layers.
  LanguageModel(const nn::Layers& layers, const models::TransformerConfig& config);
  // The same for the graph of a pipeline's model.
  LanguageModel(const nn::Graph& graph, const models::TransformerConfig& config);
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  State begin() const;

  // Appends tokens to the text and returns the scores of its next token, fp32 [vocabulary] on the
  // CPU. Throws UsageError for no tokens, for an id out of range, and for more tokens than the
  // context.
  at::Tensor extend(State& state, const std::vector<std::int64_t>& ids) const;

  // The scores of every token after each of `ids`, fp32 [ids, vocabulary] on the CPU: row i is the
  // prediction of token i + 1.
  at::Tensor all_scores(const std::vector<std::int64_t>& ids) const;

  const models::TransformerConfig& config() const { return config_; }

 private:
  struct Parts;
  at::Tensor hidden(State& state, const std::vector<std::int64_t>& ids) const;

  models::TransformerConfig config_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace trestle::generate
