#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "trestle/nn/metrics.h"
#include "trestle/parallel/stage_replicas.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/task.h"

// Evaluates a model batch by batch: a run's validation and `trestle evaluate` share it. Not
// installed.
namespace trestle::train {

// The weight of a batch in the mean of a loss. An additive loss is a mean over what it weighs: 0
// where all of a batch is ignored. A whole-batch loss has no weight of its own and counts examples.
double weight_of(const Task& task, const data::Batch& batch);

// Throws UsageError where the task's metric does not take such an output and target.
void check_metric(const Task& task, const at::Tensor& output, const at::Tensor& target);

// Concatenates the rows of all replicas' shares of a batch, given this replica's. Every replica
// calls it; one that has no share passes None.
using AllRows = std::function<at::Tensor(const at::Tensor& own)>;

struct Scores {
  nn::Tally loss, metric;

  // Evaluates a batch, without gradients. Returns the output, on the CPU and in fp32 whatever it
  // was computed in. Over ranks the last one has the output and adds to the scores; the other ranks
  // return None. A whole-batch loss is computed over all rows and counts this share's examples.
  at::Tensor add(Pipeline& pipeline, const Task& task, const data::Batch& batch,
                 const AllRows& all_rows = {});

  // Takes part in the exchange of a batch that this replica has no share of.
  static void add_nothing(const Task& task, const AllRows& all_rows);
};

// The validation of a run on its ranks. The arguments must outlive it.
class Validator {
 public:
  enum class Next { Continue, Stop };
  // The validation up to a batch, over all ranks.
  struct Batch {
    std::int64_t done = 0;      // batches
    std::int64_t examples = 0;  // of all replicas
    const Scores& scores;
    const data::Batch& batch;  // as this rank read it
    const at::Tensor& output;  // None on ranks without it
  };

  // `replicas` is null for one pipeline; `batch` is the number of examples in a batch.
  Validator(const RunRanks& ranks, const Task& task, std::int64_t batch, Pipeline& pipeline,
            parallel::StageReplicas* replicas);

  // Evaluates all batches of task.validation. All ranks call it. Returns nothing where
  // `after_batch` stopped it.
  std::optional<Scores> run(const std::function<Next(const Batch&)>& after_batch);

 private:
  at::Tensor add(const data::Batch& batch, Scores& own);
  Scores over_ranks(const Scores& own) const;

  const RunRanks& ranks_;
  const Task& task_;
  std::int64_t batch_;
  Pipeline& pipeline_;
  parallel::StageReplicas* replicas_;
  AllRows all_rows_;
};

}  // namespace trestle::train
