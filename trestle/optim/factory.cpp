#include "trestle/optim/factory.h"

#include <array>
#include <tuple>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/optim/fused.h"

namespace trestle::optim {

namespace {

void check_option(const OptimizerOption& option, const OptimizerOptions& options) {
  with_value(option, options, [&](const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>) {
      if (!value || option.is_read_by(options.name)) return;
      throw UsageError(text("optimizer '", options.name, "' has no ", option.name, "; ",
                            option.readers(" and "),
                            option.optimizers[1].empty() ? " has" : " have"));
    } else {
      const bool below_1 = option.range == OptimizerOption::Range::Below1;
      if (value >= 0 && (!below_1 || value < 1)) return;
      throw UsageError(text("optimizer '", options.name, "': ", option.name, " = ", value,
                            " is not ", below_1 ? "in [0, 1)" : "at least 0"));
    }
  });
}

void check_values(const OptimizerOptions& options) {
  for (const OptimizerOption& option : optimizer_option_table) check_option(option, options);
  if (options.nesterov && options.momentum <= 0)
    throw UsageError(text("optimizer '", options.name, "': momentum = ", options.momentum,
                          " is not above 0, as nesterov needs it"));
}

using Parameters = std::vector<at::Tensor>;
using Made = std::unique_ptr<torch::optim::Optimizer>;

Made make_sgd(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<FusedSgd>(std::move(parameters), torch::optim::SGDOptions(o.learning_rate)
                                                               .momentum(o.momentum)
                                                               .nesterov(o.nesterov)
                                                               .weight_decay(o.weight_decay));
}

template <class Optimizer, class Options>
Made make_adam(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<Optimizer>(std::move(parameters),
                                     Options(o.learning_rate)
                                         .betas(std::make_tuple(o.beta1, o.beta2))
                                         .eps(o.epsilon)
                                         .weight_decay(o.weight_decay)
                                         .amsgrad(o.amsgrad));
}

Made make_rmsprop(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<FusedRmsprop>(std::move(parameters),
                                        torch::optim::RMSpropOptions(o.learning_rate)
                                            .alpha(o.alpha)
                                            .eps(o.epsilon)
                                            .weight_decay(o.weight_decay)
                                            .momentum(o.momentum)
                                            .centered(o.centered));
}

struct Maker {
  std::string_view name;
  Made (*make)(Parameters, const OptimizerOptions&);
};
constexpr std::array makers = {Maker{"sgd", make_sgd},
                               Maker{"adam", make_adam<FusedAdam, torch::optim::AdamOptions>},
                               Maker{"adamw", make_adam<FusedAdamW, torch::optim::AdamWOptions>},
                               Maker{"rmsprop", make_rmsprop}};

}  // namespace

void check_options(const OptimizerOptions& options) {
  choose("optimizer", options.name, makers);
  check_values(options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters,
                                                        const OptimizerOptions& options) {
  const Maker& maker = choose("optimizer", options.name, makers);
  check_values(options);
  return maker.make(std::move(parameters), options);
}

std::unique_ptr<torch::optim::Optimizer> make_grouped_optimizer(
    const std::vector<ParameterGroup>& groups, const OptimizerOptions& options) {
  std::unique_ptr<torch::optim::Optimizer> all;
  for (const ParameterGroup& group : groups) {
    OptimizerOptions own = options;
    own.learning_rate *= group.rate_factor;
    own.weight_decay = group.weight_decay.value_or(options.weight_decay);
    auto made = make_optimizer(group.parameters, own);
    if (!all) {
      all = std::move(made);
      continue;
    }
    // Set the options afterwards: add_param_group() replaces a value that equals the class's
    // default by the first group's.
    all->add_param_group(torch::optim::OptimizerParamGroup(group.parameters));
    all->param_groups().back().set_options(made->param_groups()[0].options().clone());
  }
  return all ? std::move(all) : make_optimizer(std::vector<at::Tensor>(), options);
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Maker& maker : makers) names.emplace_back(maker.name);
  return names;
}

double learning_rate(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).options().get_lr();
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate,
                       const std::vector<double>& factors) {
  auto& groups = optimizer.param_groups();
  if (!factors.empty() && factors.size() != groups.size())
    throw UsageError(text("the optimizer has ", groups.size(), " groups, but ", factors.size(),
                          " factors of the learning rate were given"));
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i].options().set_lr(factors.empty() ? rate : rate * factors[i]);
}

void set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    torch::optim::OptimizerOptions& options = group.options();
    if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options))
      sgd->momentum(momentum);
    else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options))
      rmsprop->momentum(momentum);
    else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options))
      adam->betas(std::make_tuple(momentum, std::get<1>(adam->betas())));
    else if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options))
      adamw->betas(std::make_tuple(momentum, std::get<1>(adamw->betas())));
    else
      throw UsageError(
          "set_momentum: the optimizer is none of sgd, rmsprop, adam and adamw, so it has no "
          "momentum",
          {.hint = "Use a learning-rate schedule with cycle_momentum = false."});
  }
}

}  // namespace trestle::optim
