#include "trestle/train/epoch_sample.h"

#include <ATen/ops/tensor.h>

#include <tuple>
#include <utility>
#include <vector>

#include "trestle/comm/purpose.h"
#include "trestle/models/transformer/continued_text.h"
#include "trestle/nn/layers.h"

namespace trestle::train {

EpochSample::EpochSample(const recipe::Recipe& recipe, const RunRanks& ranks)
    : sample_(ranks.reports() ? TextSample(recipe) : TextSample(recipe::Recipe())),
      seed_(static_cast<std::uint64_t>(recipe.train.seed)) {
  const auto& [prompt, tokens, allowed] = sample_.task();
  std::tie(task_.prompt, task_.tokens, task_.allowed) =
      ranks.gather(std::tuple(prompt, tokens, allowed)).front();
}

std::string EpochSample::write(Pipeline& pipeline, parallel::StageReplicas* replicas,
                               const RunRanks& ranks, const std::function<bool()>& stop) const {
  const bool computes = ranks.replica() == 0;
  const models::ContinuedText continued(pipeline.model().graph());
  std::vector<std::int64_t> so_far = task_.prompt, next = task_.prompt;
  for (std::int64_t i = 0; i < task_.tokens && !stop(); ++i) {
    const std::int64_t id = comm::with_purpose(
        [] { return "in the sample of text after the epoch"; },
        [&] {
          std::int64_t chosen = 0;  // the other ranks add 0
          if (computes) {
            const at::Tensor ids = ranks.is_first() ? at::tensor(next).unsqueeze(0) : at::Tensor();
            const at::Tensor scores = pipeline.evaluate(ids);
            if (ranks.is_last() && ranks.counts())
              chosen = choose_sample_token(scores[0][-1].to(at::kCPU, at::kFloat), so_far,
                                           task_.allowed, seed_);
          } else {
            replicas->evaluate_nothing();
          }
          return ranks.sum(chosen);
        });
    so_far.push_back(id);
    next = {id};
  }
  return ranks.reports() ? sample_.text_of(so_far) : "";
}

}  // namespace trestle::train
