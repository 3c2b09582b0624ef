#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/layers.h"
#include "trestle/precision/autocast.h"

// Finds precisions in which a CPU computes much more slowly than in fp32. Most CPUs have no
// instructions for fp16, and libtorch has no fast kernels for it there: a layer takes up to 90
// times as long, and the first step of a run seems to hang.
//
//   if (const auto speed = precision::measure_layer_speed(net))
//     if (const auto slow = precision::find_slow_precision(Precision::Float16, *speed))
//       std::cerr << precision::describe(*slow) << "\n";
namespace trestle::precision {

// The seconds of one layer's forward and backward on the CPU.
struct LayerSpeed {
  std::string weight;  // the layer's: "conv1.weight [64, 3, 7, 7]"
  double fp32 = 0, bf16 = 0, fp16 = 0;

  double of(Precision precision) const;
};

// Measures a layer with a weight of this shape, such as [out, in] (linear) or [out, in, 3, 3]
// (convolution), on a small input, in the calling thread. Takes some milliseconds, and at most
// about half a second where fp16 is slow. Uses no autograd and draws no random numbers.
LayerSpeed measure_layer_speed(const std::string& name, const std::vector<std::int64_t>& weight);

// The same for the largest weight of two to five dimensions. Nothing without such a weight, and for
// weights on a GPU. The layers of a model that do not exist yet are made one at a time, and freed.
std::optional<LayerSpeed> measure_layer_speed(const NamedTensors& parameters);
std::optional<LayerSpeed> measure_layer_speed(const nn::Layers& model);

struct SlowPrecision {
  Precision precision = Precision::Float16;
  LayerSpeed speed;
  double times = 1;                       // as long as in fp32
  Precision better = Precision::Float32;  // bf16 if that is at least as fast as fp32 or nearly so
};

// Slow: the layer takes at least twice as long in it as in fp32, and at least half a millisecond.
std::optional<SlowPrecision> find_slow_precision(Precision precision, const LayerSpeed& speed);

// "fp16 takes 15 times as long as fp32 on this CPU: 28 ms, and 1.8 ms, for one layer's forward and
// backward, conv1.weight [64, 3, 3, 3]; bf16 takes 1.1 ms".
std::string describe(const SlowPrecision& slow);

}  // namespace trestle::precision
