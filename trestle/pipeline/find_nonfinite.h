#pragma once

#include <cstdint>
#include <string>

#include "trestle/pipeline/pipeline.h"

// Where numbers stopped being numbers: for the message when a loss or a gradient is infinite or NaN.
//
//   const auto result = pipeline.step(image, mask, loss);
//   if (!std::isfinite(result.loss)) throw std::runtime_error(find_nonfinite({image}, pipeline));
namespace trestle {

// One sentence that names what is infinite or NaN first, in the order of the model: an input, a
// parameter, or else a layer's output, with the layer's stage. The layers run again, one by one,
// over the last step's micro-batches with its random numbers (`first_micro_batch` as that step had
// it); buffers keep their values. Where all outputs are finite the loss is to blame.
//
// Over ranks all call it, with the inputs that they gave the step, and all get the same sentence, which
// names the rank too: "layer 'conv3' (rank 1, stage 2)". Each runs its own layers.
std::string find_nonfinite(const nn::Values& inputs, Pipeline& pipeline,
                           std::int64_t first_micro_batch = 0);

// The same for gradients: that of the layer nearest to the loss; "" where all are finite.
std::string find_nonfinite_gradient(Pipeline& pipeline);

}  // namespace trestle
