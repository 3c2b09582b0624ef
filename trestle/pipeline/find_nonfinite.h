#pragma once

#include <cstdint>
#include <string>

#include "trestle/pipeline/pipeline.h"

// Finds the first infinite or NaN value, for the error message after a loss or gradient is not
// finite.
//
//   const auto result = pipeline.step(image, mask, loss);
//   if (!std::isfinite(result.loss)) throw std::runtime_error(find_nonfinite({image}, pipeline));
namespace trestle {

// Returns one sentence that names what is infinite or NaN first, in the order of the model: an
// input, a parameter, or a layer's output. The layers run again, one by one, over the last step's
// micro-batches, with its random numbers (`first_micro_batch` as in that step). Buffers keep their
// values. If all outputs are finite, the sentence names the loss.
//
// Over ranks all ranks call it, with the inputs of the step, and get the same sentence, which then
// names the rank too: "layer 'conv3' (rank 1, stage 2)". Each rank runs its own layers. The same
// holds for ranks that split layers: "parameter 'head.weight' (tensor rank 1, stage 0)".
std::string find_nonfinite(const nn::Values& inputs, Pipeline& pipeline,
                           std::int64_t first_micro_batch = 0);

// The same for gradients: that of the layer nearest to the loss; "" if all are finite.
std::string find_nonfinite_gradient(Pipeline& pipeline);

}  // namespace trestle
