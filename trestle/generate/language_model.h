#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trestle/models/transformer/config.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

// A transformer that continues text.
//
//   trestle::generate::LanguageModel model(net, config);  // net = models::transformer(config)
//   auto state = model.begin();
//   at::Tensor scores = model.extend(state, prompt);      // of the token after the prompt
//   scores = model.extend(state, {next});                 // of the token after that
namespace trestle::models {
struct KeyValueCache;
}

namespace trestle::generate {

class LanguageModel {
 public:
  // The keys and values of all tokens so far, of one text or of the texts of a batch. A copy is
  // independent, so that one text can be continued in two ways. The first call that extends one of
  // the two copies the keys and values.
  class State {
   public:
    std::int64_t texts() const { return static_cast<std::int64_t>(padding_.size()); }
    std::int64_t tokens(std::int64_t text = 0) const {
      return columns_ - padding_[static_cast<std::size_t>(text)];
    }

   private:
    friend class LanguageModel;
    struct Caches;
    std::shared_ptr<Caches> caches_;
    std::int64_t columns_ = 0;  // tokens of each text with its padding
    // Places before the first token of each text, so that all texts end at the same place.
    std::vector<std::int64_t> padding_ = {0};
  };

  // Layers of models::transformer(config), which are shared, not copied. They may be on several
  // devices, as the stages of a pipeline: values move with the text. Throws UsageError for other
  // layers, and for a config that is not theirs.
  LanguageModel(const nn::Layers& layers, const models::TransformerConfig& config);
  // The same for the graph of a pipeline's model.
  LanguageModel(const nn::Graph& graph, const models::TransformerConfig& config);
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  // A new state; it is of use with this model only. If the layers are those of a pipeline that was
  // trained, this also updates tied weights (nn::tie_again()). A state is invalid after the weights
  // have changed.
  State begin() const;

  // Appends tokens to the text and returns the scores of its next token, fp32 [vocabulary] on the
  // CPU. Throws UsageError for no tokens, for an id out of range, and for more tokens than the
  // context.
  at::Tensor extend(State& state, const std::vector<std::int64_t>& ids) const;

  // The same for the texts of a batch, which do not see each other: scores fp32 [texts,
  // vocabulary]. The first call for a state takes texts of unequal lengths, and pads them on the
  // left; each later one takes N ids for every text. The scores of a text equal those that it has
  // alone, to rounding. Throws UsageError as extend(), with the number of the text.
  at::Tensor extend_batch(State& state, const std::vector<std::vector<std::int64_t>>& ids) const;

  // Keeps these texts of the batch, at least one, in this order, and frees the memory of the rest.
  void keep(State& state, const std::vector<std::int64_t>& texts) const;

  // The scores of every token after each of `ids`, fp32 [ids, vocabulary] on the CPU: row i is the
  // prediction of token i + 1.
  at::Tensor all_scores(const std::vector<std::int64_t>& ids) const;

  // A text of which the tokens from ids[first] on are scored; first is 1 or more.
  struct Continuation {
    std::vector<std::int64_t> ids;
    std::int64_t first = 1;
  };
  // The log-probability in nats of each token ids[first], ids[first + 1], ... behind all tokens
  // before it. The texts are one batch, padded on the right. Throws UsageError for an id out of
  // range, a first of 0 or beyond the ids, and more than context + 1 ids.
  std::vector<std::vector<double>> log_probabilities(const std::vector<Continuation>& texts) const;

  // The same for groups of texts, to rounding: the tokens that all texts of a group begin with are
  // computed once. The groups are one batch.
  std::vector<std::vector<double>> log_probabilities_of_groups(
      const std::vector<std::vector<Continuation>>& groups) const;

  const models::TransformerConfig& config() const { return config_; }

  // The tensor ranks that split the layers (TransformerOptions::tensor); one rank alone for whole
  // layers. All of them make the same calls with the same ids, and all get the same scores. The
  // caches of a rank have the keys and values of its own heads.
  const tensor_parallel::TensorRanks& ranks() const;

 private:
  struct Parts;
  at::Tensor hidden(State& state, const std::vector<std::vector<std::int64_t>>& ids) const;
  void check_state(const State& state) const;
  State::Caches& caches_to_change(State& state) const;
  void check(const State& state, const std::vector<std::vector<std::int64_t>>& ids) const;
  at::Tensor padded_through_blocks(State& state,
                                   const std::vector<std::vector<std::int64_t>>& ids) const;
  at::Tensor through_cached_blocks(State& state, const at::Tensor& ids) const;
  void check_continuations(const std::vector<Continuation>& texts) const;
  std::vector<std::vector<double>> scores_of_tokens(const at::Tensor& x,
                                                    const std::vector<Continuation>& texts,
                                                    const std::vector<std::int64_t>& places) const;
  at::Tensor through_blocks(
      const at::Tensor& ids, const at::Tensor& positions, const at::Tensor& mask,
      const std::function<models::KeyValueCache&(std::size_t)>& cache_of) const;

  models::TransformerConfig config_;
  std::shared_ptr<Parts> parts_;
};

}  // namespace trestle::generate
