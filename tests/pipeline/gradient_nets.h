#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "trestle/base/text.h"
#include "trestle/models/resnet50.h"
#include "trestle/plan/balance.h"

// The nets whose gradients are compared under every plan, with data and losses. Keyed factories
// create their weights, so that every thread gets the same ones.
namespace trestle::support {

struct Net {
  std::string name;
  std::function<nn::Layers()> make;  // equal weights on each call
  at::Tensor input;
  at::Tensor target;
  nn::Loss loss;
  nn::Loss one_f_one_b_loss;     // an additive one
  bool batch_statistics = true;  // or dropout: only the looped oracle applies
};

inline Net narrow_unet() {
  return {.name = "unet",
          .make = [] { return oracle::in_double(models::unet({.width = 2})); },
          .input = golden::formula_input({13, 3, 16, 19}).to(at::kDouble),
          .target = golden::formula_classes({13, 16, 19}, 2),
          .loss = nn::cross_entropy_and_dice(),
          .one_f_one_b_loss = nn::cross_entropy()};
}

inline Net narrow_unet3d() {
  return {.name = "unet3d",
          .make =
              [] {
                return oracle::in_double(
                    models::unet3d({.width = 2, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 2}}}));
              },
          .input = golden::formula_input({5, 1, 5, 8, 9}).to(at::kDouble),
          .target = golden::formula_classes({5, 5, 8, 9}, 2),
          .loss = nn::cross_entropy_and_dice(),
          .one_f_one_b_loss = nn::cross_entropy()};
}

inline Net flat_resnet() {
  return {.name = "resnet18_flat",
          .make = [] { return oracle::in_double(models::resnet18_flat({.width = 4})); },
          .input = golden::formula_input({13, 1, 28, 28}).to(at::kDouble),
          .target = golden::formula_classes({13}, 10),
          .loss = nn::cross_entropy(),
          .one_f_one_b_loss = nn::cross_entropy()};
}

inline Net narrow_resnet50() {
  return {.name = "resnet50",
          .make = [] { return oracle::in_double(models::resnet50({.classes = 10, .width = 2})); },
          .input = golden::formula_input({13, 3, 33, 33}).to(at::kDouble),
          .target = golden::formula_classes({13}, 10),
          .loss = nn::cross_entropy(),
          .one_f_one_b_loss = nn::cross_entropy()};
}

inline Net toy(double dropout) {
  return {.name = text("toy, dropout ", dropout),
          .make = [dropout] { return oracle::in_double(models::toy({.dropout = dropout})); },
          .input = golden::formula_input({13, 12}).to(at::kDouble),
          .target = golden::formula_classes({13}, 4),
          .loss = nn::cross_entropy(),
          .one_f_one_b_loss = nn::cross_entropy(),
          .batch_statistics = dropout > 0};
}

// The net has eight layers. Integers, and a value that may be None, go from layer 1 to layer 2, and
// others from layer 5 to layer 6. Four micro-batches have 2, 2, 2 and 1 samples: the first value is
// None in the last one only, and the second value in all but the last one.
inline Net sometimes_none() {
  static constexpr std::int64_t columns = 6;
  const auto make = [] {
    const auto linear = [] {
      torch::nn::Linear layer(columns, columns);
      layer->to(at::kDouble);
      return layer;
    };
    const auto join = [](at::Tensor x, at::Tensor index, at::Tensor extra) {
      const at::Tensor chosen = x.gather(1, index.unsqueeze(1)) + x;
      return extra.defined() ? chosen + extra : chosen;
    };
    nn::Layers net(nn::Seed{11});
    net.add("linear0", linear);
    net.add("split0", [](at::Tensor x) {
      return std::make_tuple(x, x.argmax(1), x.size(0) > 1 ? x * 3 : at::Tensor());
    });
    net.add("join0", join);
    net.add("linear1", linear);
    net.add("linear2", linear);
    net.add("split1", [](at::Tensor x) {
      return std::make_tuple(x, x.argmax(1), x.size(0) > 1 ? at::Tensor() : x.tanh());
    });
    net.add("join1", join);
    net.add("linear3", linear);
    return net;
  };
  const at::Tensor input = golden::formula_input({7, columns}).to(at::kDouble);
  return {.name = "sometimes None",
          .make = make,
          .input = input,
          .target = input.flip(0),
          .loss = nn::mean_squared_error(),
          .one_f_one_b_loss = nn::mean_squared_error(),
          .batch_statistics = false};
}

// The number of layers of each stage.
inline std::vector<int> even_balance(int layers, int stages) {
  return plan::balance(std::vector<double>(layers, 1.0), stages);
}

}  // namespace trestle::support
