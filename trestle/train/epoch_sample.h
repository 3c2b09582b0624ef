#pragma once

#include <functional>
#include <string>

#include "trestle/parallel/stage_replicas.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/language/text_sample.h"
#include "trestle/train/run_ranks.h"

// A text that a language model writes after each epoch, on the ranks of its run. Inside of the
// trainer. Not installed.
namespace trestle::train {

class EpochSample {
 public:
  // The rank that reports reads the prompt and the tokenizer. All ranks call it.
  EpochSample(const recipe::Recipe& recipe, const RunRanks& ranks);

  bool can_write() const { return !task_.prompt.empty(); }

  // Continues the first tokens of the validation text, drawn with the run's seed: the text of one
  // process for the same weights, whatever the ranks. The first replica evaluates token by token
  // with cached keys and values, and the other replicas only take part in its all-gathers. All
  // ranks call it; the rank that reports gets the text. `stop`, which all ranks answer equally,
  // ends it early.
  std::string write(Pipeline& pipeline, parallel::StageReplicas* replicas, const RunRanks& ranks,
                    const std::function<bool()>& stop) const;

 private:
  TextSample sample_;  // without a task on ranks that do not report
  TextSample::Task task_;
  std::uint64_t seed_;
};

}  // namespace trestle::train
