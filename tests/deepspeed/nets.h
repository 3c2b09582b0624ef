#pragma once

#include <torch/torch.h>

#include <string>

#include "tests/sharding/plain_net.h"
#include "tests/support/message_of.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/deepspeed.h"

// Engines for the net of plain_net.h, whose plain training shares no code with trestle.
namespace trestle::deepspeed {

using support::message_of;
using testing::difference;
using testing::images;
using testing::make_plain_net;
using testing::NetImpl;
using testing::targets;
using testing::Weights;
namespace F = torch::nn::functional;
using Net = ModuleEngine<NetImpl>;

inline std::shared_ptr<NetImpl> single_net() {
  const auto net = make_plain_net();
  net->to(at::kFloat);
  return net;
}

// Without clipping, unless the keys name it.
inline DeepspeedConfig config(const std::string& keys, int ranks) {
  const bool clips = keys.find("gradient_clipping") != std::string::npos;
  return parse_deepspeed_config((clips ? "{" : "{\"gradient_clipping\": 0, ") + keys + "}",
                                "ds_config.json", ranks);
}

inline std::string stage(int number) {
  return text("\"zero_optimization\": {\"stage\": ", number, "}, ");
}

inline constexpr auto adamw =
    R"("optimizer": {"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0.1}}, )";
inline constexpr auto momentum =
    R"("optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}}, )";
inline constexpr int batch = testing::batch;

// Trains one batch: this rank's micro-batches in order. Returns the mean loss.
inline double train_batch(Net& engine, int step) {
  const std::int64_t micro = engine.train_micro_batch_size_per_gpu();
  double sum = 0;
  for (std::int64_t i = 0; i < engine.gradient_accumulation_steps(); ++i) {
    const std::int64_t begin = (i * engine.world_size() + engine.global_rank()) * micro;
    const at::Tensor y = engine(images(step).narrow(0, begin, micro));
    const at::Tensor loss =
        F::cross_entropy(y.to(at::kDouble), targets(step).narrow(0, begin, micro));
    engine.backward(loss);
    engine.step();
    sum += loss.item<double>();
  }
  return sum / static_cast<double>(engine.gradient_accumulation_steps());
}

}  // namespace trestle::deepspeed
