#pragma once

#include <torch/torch.h>
#include <trestle/trestle.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

// Shared by the programs of this folder. Weights, samples and losses are those of survey.py: both
// sides compute them from one formula.
namespace survey {

// `count` numbers in [-1, 1): an integer hash of (position, key).
inline at::Tensor formula(at::IntArrayRef shape, std::uint64_t key) {
  constexpr std::uint64_t mask = 0xffffffff;
  at::Tensor tensor = at::empty(shape, at::kDouble);
  auto* const data = tensor.data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const auto position = static_cast<std::uint64_t>(i);
    std::uint64_t x = (position * 2654435761U + ((key + 1) * 2246822519U & mask)) & mask;
    x ^= x >> 15;
    x = x * 2246822519U & mask;
    x ^= x >> 13;
    x = x * 3266489917U & mask;
    x ^= x >> 16;
    data[i] = static_cast<double>(x) / 2147483648.0 - 1.0;
  }
  return tensor;
}

inline at::Tensor samples(at::IntArrayRef shape, std::uint64_t key) {
  return formula(shape, key).to(at::kFloat);
}

inline at::Tensor classes(at::IntArrayRef shape, std::uint64_t key, std::int64_t count) {
  return ((formula(shape, key) + 1) / 2 * static_cast<double>(count)).floor().to(at::kLong);
}

// Weights of two and more dimensions have variance 1 / fan-in; scales of norms are near 1, biases
// near 0. The order of the parameters is Python's. `first`: the number of the first one.
inline void set_weights(const trestle::NamedTensors& parameters, std::uint64_t first = 0) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    at::Tensor value = formula(parameter.sizes(), first + i);
    if (parameter.dim() >= 2) {
      value *= std::sqrt(3.0 / static_cast<double>(parameter.numel() / parameter.size(0)));
    } else {
      value *= 0.2;
      if (name.ends_with("weight")) value += 1;
    }
    parameter.copy_(value.to(at::kFloat));
  }
}

inline void set_weights(const torch::nn::Module& module, std::uint64_t first = 0) {
  trestle::NamedTensors parameters;
  for (const auto& parameter : module.named_parameters())
    parameters.emplace_back(parameter.key(), parameter.value());
  set_weights(parameters, first);
}

struct Arguments {
  trestle::Precision precision = trestle::Precision::Float32;  // --precision fp32|bf16|fp16
  bool full = false;                                           // --full: the survey's own sizes
  std::string out = ".";                                       // --out FOLDER
  std::string file;                                            // a word without dashes
};

inline Arguments read_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--full")
      arguments.full = true;
    else if (word == "--precision" && i + 1 < argc)
      arguments.precision = trestle::precision::parse_precision(argv[++i]);
    else if (word == "--out" && i + 1 < argc)
      arguments.out = argv[++i];
    else if (word.starts_with("-"))
      throw trestle::UsageError("unknown flag " + word);
    else
      arguments.file = word;
  }
  return arguments;
}

inline void print_loss(std::int64_t step, double loss) {
  std::cout << "loss " << step << " " << std::setprecision(9) << loss << std::endl;
}

// Runs a program's main(). Returns its exit code, 2 for a usage error, 1 for any other.
template <class Program>
int run(int argc, char** argv, const Program& program) {
  try {
    program(read_arguments(argc, argv));
    return 0;
  } catch (const trestle::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

}  // namespace survey
