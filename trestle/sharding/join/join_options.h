#pragma once

#include <cstdint>
#include <functional>

namespace trestle {

struct JoinOptions {
  // The divisor of the sum of gradients where backward() has no weights: the number of all ranks,
  // or of the ranks that still have batches. With weights the divisor is their sum, and a rank
  // without batches has weight 0.
  enum class Divide : std::uint8_t { AllRanks, RanksWithBatches };
  Divide divide = Divide::AllRanks;
  // When the first rank has no batches left, it shadows the active ranks, or all ranks throw
  // StateError and can continue with something else.
  enum class FirstEnd : std::uint8_t { Shadow, Throw };
  FirstEnd first_end = FirstEnd::Shadow;
  // The rest of a step, after its reduced backward. A shadowing rank calls it after each of them:
  // it steps its shard of the optimizer's state above level None, its copy of the weights at None,
  // and takes part in clip_grad_norm(). Its gradients are cleared where the active ranks clear
  // theirs.
  std::function<void()> after_backward = {};
};

}  // namespace trestle
