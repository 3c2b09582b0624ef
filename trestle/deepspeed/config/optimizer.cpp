#include <algorithm>
#include <array>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/sections.h"

namespace trestle::deepspeed {

namespace {

constexpr double largest_float = 1e30;

constexpr auto params_path = "optimizer.params";

// The keys of an optimizer's params that the table of its options names, and those that every
// optimizer of DeepSpeed takes.
Keys keys_of(optim::OptimizerOptions& to) {
  Keys keys = {
      only("max_grad_norm", 0.0, "gradients are clipped by 'gradient_clipping' of the file"),
      only("maximize", false, "trestle's optimizers only minimise")};
  for (const optim::OptimizerOption& option : optim::optimizer_option_table) {
    if (option.deepspeed.empty() || !option.is_read_by(to.name)) continue;
    const std::string key(option.deepspeed);
    if (option.is_switch())
      keys.push_back(obeyed(key, to.*std::get<bool optim::OptimizerOptions::*>(option.member)));
    else
      keys.push_back(obeyed(key, to.*std::get<double optim::OptimizerOptions::*>(option.member),
                            {0, largest_float}));
  }
  for (const char* name : {"fused", "foreach", "capturable", "differentiable", "set_grad_none"})
    keys.push_back(idle(name, Type::Switch, "every optimizer is fused"));
  return keys;
}

// Reads the parameters of "adam" or "adamw", the name in `to`.
void read_adam(const Json& params, optim::OptimizerOptions& to, Reading reading) {
  const bool is_adamw = to.name == "adamw";
  std::array<double, 2> betas = {to.beta1, to.beta2};
  bool adam_w_mode = true, torch_adam = false;
  Keys keys = keys_of(to);
  Key both_betas{.name = "betas", .type = Type::Pair, .smallest = 0, .largest = 1};
  both_betas.set = [&](const Value& value) { betas = std::get<std::array<double, 2>>(value); };
  keys.push_back(both_betas);
  keys.push_back(obeyed("adam_w_mode", adam_w_mode));
  keys.push_back(obeyed("torch_adam", torch_adam));
  keys.push_back(only("bias_correction", true, "trestle's Adam always corrects its averages"));
  keys.push_back(
      only("fp32_optimizer_states", true, "trestle keeps the optimizer's state in fp32"));
  read_object(params, params_path, keys, reading);
  to.beta1 = betas[0];
  to.beta2 = betas[1];
  if (to.beta1 >= 1 || to.beta2 >= 1)
    reading.problems.add(
        text("'betas' in ", params_path, " must be below 1, not ", to.beta1, " and ", to.beta2));
  const bool decays_weights = is_adamw || adam_w_mode;
  to.name = decays_weights ? "adamw" : "adam";
  if (decays_weights && !is_adamw)
    reading.config.notes.push_back(
        "optimizer Adam is adamw, as in DeepSpeed, because adam_w_mode is not false");
  if (!torch_adam || !decays_weights || is_given(params, "weight_decay")) return;
  to.weight_decay = 0.01;
  reading.config.notes.push_back(
      "weight_decay is 0.01, the default of torch's AdamW, which torch_adam selects");
}

void read_sgd(const Json& params, optim::OptimizerOptions& to, Reading reading) {
  Keys keys = keys_of(to);
  keys.push_back(only("dampening", 0.0, "trestle's sgd has no dampening"));
  read_object(params, params_path, keys, reading);
  if (to.nesterov && to.momentum == 0)
    reading.problems.add(text("'nesterov' in ", params_path, " needs a 'momentum' above 0"));
}

void read_rmsprop(const Json& params, optim::OptimizerOptions& to, Reading reading) {
  to.learning_rate = 0.01;  // torch's default
  read_object(params, params_path, keys_of(to), reading);
}

// Describes the nearest of our optimizers to one that only DeepSpeed has; empty for an unknown one.
std::string nearest_optimizer(std::string_view type) {
  constexpr std::string_view sends_less =
      "\"Adam\"; \"communication_data_type\": \"bf16\" halves what is sent, and at stage 0 "
      "sharding::PowerSgd sends least";
  struct Entry {
    std::string_view type, nearest;
  };
  constexpr std::array entries = {
      Entry{"lamb", "\"AdamW\" with the scheduler WarmupLR, which large batches need too"},
      Entry{"onebitadam", sends_less},
      Entry{"zerooneadam", sends_less},
      Entry{"onebitlamb", sends_less},
      Entry{"lion", "\"AdamW\", with a rate 3 to 10 times Lion's"},
      Entry{"adagrad", "\"RMSprop\""},
      Entry{"muadam", "\"Adam\", with parameter groups of the program for muP's rates"},
      Entry{"muadamw", "\"AdamW\", with parameter groups of the program for muP's rates"},
      Entry{"musgd", "\"SGD\", with parameter groups of the program for muP's rates"},
      Entry{"muon", "\"AdamW\""}};
  for (const Entry& entry : entries)
    if (entry.type == type) return std::string(entry.nearest);
  return "";
}

std::string unknown_optimizer(const std::string& type) {
  const std::vector<std::string> ours = {"Adam", "AdamW", "SGD", "RMSprop"};
  const std::string nearest = nearest_optimizer(small_letters(type));
  if (!nearest.empty())
    return text("trestle has no optimizer ", shown(Json(type)), ". Known are ", join(ours, ", "),
                ". Nearest: ", nearest, ".");
  const std::string more = type.size() < 30 ? did_you_mean(type, ours) : "";
  return text("unknown optimizer ", shown(Json(type)), more.empty() ? "." : more, " Known are ",
              join(ours, ", "), ".");
}

}  // namespace

void read_optimizer(const Json& json, Reading reading) {
  const auto typed =
      read_typed(json, "optimizer",
                 {idle("legacy_fusion", Type::Switch, "every optimizer is fused")}, reading);
  if (!typed) return;
  optim::OptimizerOptions& to = reading.config.optimizer.emplace();
  to.name = small_letters(typed->type);
  if (to.name == "adam" || to.name == "adamw")
    read_adam(typed->params, to, reading);
  else if (to.name == "sgd")
    read_sgd(typed->params, to, reading);
  else if (to.name == "rmsprop")
    read_rmsprop(typed->params, to, reading);
  else
    reading.problems.add(unknown_optimizer(typed->type));
}

}  // namespace trestle::deepspeed
