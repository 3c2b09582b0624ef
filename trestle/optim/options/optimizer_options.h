#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

// The options of an optimizer, and the one table of them that recipes, DeepSpeed files and
// make_optimizer() use. It includes no torch.
namespace trestle::optim {

// The names and defaults are those of Python's torch.optim. An optimizer reads only its own
// options.
struct OptimizerOptions {
  std::string name = "sgd";  // one of optimizer_names()
  double learning_rate = 1e-3;
  double weight_decay = 0;  // added to the gradient; adamw shrinks the weight itself
  double momentum = 0;
  bool nesterov = false;
  double alpha = 0.99;
  bool centered = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool amsgrad = false;
};

struct OptimizerOption {
  using Member = std::variant<double OptimizerOptions::*, bool OptimizerOptions::*>;
  enum class Range { AtLeast0, Below1 };  // of a number: x >= 0, or 0 <= x < 1

  std::string_view name;
  Member member;
  std::array<std::string_view, 3> optimizers = {};  // that read the option; empty: all
  std::string_view deepspeed = {};  // its key in DeepSpeed's params; empty: in `betas`
  std::string_view help = {};
  Range range = Range::AtLeast0;
  double largest = 1e6;  // in a recipe

  bool is_switch() const { return std::holds_alternative<bool OptimizerOptions::*>(member); }
  bool is_read_by(std::string_view optimizer) const {
    return optimizers[0].empty() ||
           std::find(optimizers.begin(), optimizers.end(), optimizer) != optimizers.end();
  }
  // "adam, adamw" with the separator ", "; empty if all optimizers read the option.
  std::string readers(std::string_view separator) const {
    std::string names;
    for (const std::string_view one : optimizers)
      if (!one.empty()) names.append(names.empty() ? "" : separator).append(one);
    return names;
  }
};

// Every option but the name. A recipe lists them in this order.
inline constexpr std::array optimizer_option_table = {
    OptimizerOption{.name = "learning_rate",
                    .member = &OptimizerOptions::learning_rate,
                    .deepspeed = "lr",
                    .help = "learning rate; with a schedule its base rate"},
    OptimizerOption{.name = "momentum",
                    .member = &OptimizerOptions::momentum,
                    .optimizers = {"sgd", "rmsprop"},
                    .deepspeed = "momentum",
                    .help = "momentum",
                    .largest = 1},
    OptimizerOption{.name = "weight_decay",
                    .member = &OptimizerOptions::weight_decay,
                    .deepspeed = "weight_decay",
                    .help = "weight decay"},
    OptimizerOption{.name = "nesterov",
                    .member = &OptimizerOptions::nesterov,
                    .optimizers = {"sgd"},
                    .deepspeed = "nesterov",
                    .help = "Nesterov's momentum"},
    OptimizerOption{.name = "beta1",
                    .member = &OptimizerOptions::beta1,
                    .optimizers = {"adam", "adamw"},
                    .help = "decay of the average of gradients",
                    .range = OptimizerOption::Range::Below1,
                    .largest = 1},
    OptimizerOption{.name = "beta2",
                    .member = &OptimizerOptions::beta2,
                    .optimizers = {"adam", "adamw"},
                    .help = "decay of the average of squared gradients",
                    .range = OptimizerOption::Range::Below1,
                    .largest = 1},
    OptimizerOption{.name = "epsilon",
                    .member = &OptimizerOptions::epsilon,
                    .optimizers = {"adam", "adamw", "rmsprop"},
                    .deepspeed = "eps",
                    .help = "added to the divisor"},
    OptimizerOption{.name = "amsgrad",
                    .member = &OptimizerOptions::amsgrad,
                    .optimizers = {"adam", "adamw"},
                    .deepspeed = "amsgrad",
                    .help = "divide by the largest average so far"},
    OptimizerOption{.name = "alpha",
                    .member = &OptimizerOptions::alpha,
                    .optimizers = {"rmsprop"},
                    .deepspeed = "alpha",
                    .help = "decay of the average of squared gradients",
                    .largest = 1},
    OptimizerOption{.name = "centered",
                    .member = &OptimizerOptions::centered,
                    .optimizers = {"rmsprop"},
                    .deepspeed = "centered",
                    .help = "divide by the standard deviation"}};

// Calls `use` with the option's value as a reference, bool& or double&, of `options`.
template <class Options, class Use>
decltype(auto) with_value(const OptimizerOption& option, Options& options, Use use) {
  return std::visit([&](auto member) -> decltype(auto) { return use(options.*member); },
                    option.member);
}

}  // namespace trestle::optim
