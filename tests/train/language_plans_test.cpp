#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <set>

#include "tests/train/language_training.h"

namespace trestle::train {
namespace {

// The weights of GPT-2, whose head is tied to its embedding, and of Llama under combinations of
// plans, compared with plain libtorch. A run has a choice of each factor; CI runs some combinations
// that hold each pair of choices, and TRESTLE_PLANS=all runs all of them.
class LanguagePlans : public LanguageTraining {
 protected:
  struct Choice {
    std::string name;
    std::function<void(recipe::Recipe&)> set;
  };
  using Factor = std::vector<Choice>;
  using Combination = std::vector<std::size_t>;  // the choice of each factor

  static Choice cut(std::vector<std::int64_t> balance, const char* schedule) {
    return {text(balance.size(), "_stages_", schedule), [=](recipe::Recipe& r) {
              r.pipeline.balance = balance;
              r.pipeline.schedule = schedule;
            }};
  }
  static Choice mesh(const char* name, std::int64_t replicate, std::int64_t shard,
                     const char* level) {
    return {name, [=](recipe::Recipe& r) {
              r.mesh.replicate = replicate;
              r.mesh.shard = shard;
              r.mesh.shard_level = level;
            }};
  }

  // The last factor asks whether the stages of a replica are on ranks of their own.
  static std::vector<Factor> factors() {
    const auto nothing = [](recipe::Recipe&) {};
    return {
        {{"fp32", nothing}, {"bf16", in_bf16}},
        {cut({5}, "gpipe"), cut({2, 3}, "gpipe"), cut({2, 3}, "1f1b"), cut({1, 2, 2}, "gpipe"),
         cut({2, 1, 2}, "1f1b")},
        {mesh("alone", 1, 1, "parameters"), mesh("ddp", 2, 1, "parameters"),
         mesh("zero1", 1, 2, "optimizer_state"), mesh("zero2", 1, 3, "gradients"),
         mesh("zero3", 1, 2, "parameters"), mesh("hsdp", 2, 2, "parameters")},
        {{"keep", nothing},
         {"recompute_blocks", [](recipe::Recipe& r) { r.pipeline.checkpoint = {"layers"}; }},
         {"recompute_all", [](recipe::Recipe& r) { r.pipeline.recompute = {"always"}; }}},
        {{"one_process", nothing},
         {"ranks", [](recipe::Recipe& r) { r.mesh.pipeline = std::ssize(r.pipeline.balance); }}},
    };
  }

  static std::vector<Combination> all_combinations() {
    std::vector<Combination> all = {{}};
    for (const Factor& factor : factors()) {
      std::vector<Combination> longer;
      for (const Combination& one : all)
        for (std::size_t choice = 0; choice < factor.size(); ++choice) {
          longer.push_back(one);
          longer.back().push_back(choice);
        }
      all = std::move(longer);
    }
    return all;
  }

  // Takes the combination with the most pairs that none has yet, until no pair is left.
  static std::vector<Combination> covering_combinations() {
    using Pair = std::array<std::size_t, 4>;
    const auto pairs_of = [](const Combination& one) {
      std::vector<Pair> pairs;
      for (std::size_t a = 0; a < one.size(); ++a)
        for (std::size_t b = a + 1; b < one.size(); ++b) pairs.push_back({a, one[a], b, one[b]});
      return pairs;
    };
    const auto all = all_combinations();
    std::set<Pair> left;
    for (const auto& one : all)
      for (const Pair& pair : pairs_of(one)) left.insert(pair);
    std::vector<Combination> taken;
    while (!left.empty()) {
      const auto news = [&](const Combination& one) {
        return std::ranges::count_if(pairs_of(one),
                                     [&](const Pair& p) { return left.contains(p); });
      };
      const auto best = std::ranges::max_element(all, {}, news);
      for (const Pair& pair : pairs_of(*best)) left.erase(pair);
      taken.push_back(*best);
    }
    return taken;
  }

  static recipe::Recipe recipe_of(const std::string& model, const Combination& choices) {
    recipe::Recipe recipe = language_recipe(model);
    recipe.name += "_" + model;
    recipe.pipeline.micro_batches = 2;
    const auto all = factors();
    for (std::size_t f = 0; f < all.size(); ++f) {
      all[f][choices[f]].set(recipe);
      recipe.name += "_" + all[f][choices[f]].name;
    }
    return recipe;
  }

  static void run(const recipe::Recipe& recipe) {
    const auto ranks = recipe.mesh.parts() * std::max<std::int64_t>(1, recipe.mesh.pipeline);
    if (ranks > 1)
      on_ranks(static_cast<int>(ranks), recipe, {});
    else
      train(recipe);
  }

  // The largest distance of a weight from plain libtorch's, as a part of how far training moved it.
  static double distance(const std::map<std::string, at::Tensor>& expected,
                         const std::map<std::string, at::Tensor>& actual,
                         const std::map<std::string, at::Tensor>& initial) {
    double largest = 0;
    for (const auto& [name, tensor] : expected) {
      const double moved = (tensor - initial.at(name)).norm().item<double>();
      const double apart = (tensor - actual.at(name)).norm().item<double>();
      largest = std::max(largest, apart / std::max(moved, 1e-6));
    }
    return largest;
  }

  static void expect_plain_weights(const std::string& model) {
    const char* wish = std::getenv("TRESTLE_PLANS");
    const bool whole = wish != nullptr && wish == std::string_view("all");
    const auto combinations = whole ? all_combinations() : covering_combinations();
    std::map<std::string, std::map<std::string, at::Tensor>> plain;  // by precision
    std::map<std::string, at::Tensor> initial;
    for (const Combination& choices : combinations) {
      const recipe::Recipe recipe = recipe_of(model, choices);
      SCOPED_TRACE(recipe.name);
      std::cout << recipe.name << std::flush;
      run(recipe);
      auto& expected = plain[recipe.train.precision];
      if (expected.empty()) {
        expected = plain_weights(recipe);
        const auto config = models::read_config(base_ / "runs" / recipe.name / "config.json");
        const auto named = models::transformer(config, {.seed = 42}).named_parameters();
        initial = {named.begin(), named.end()};
      }
      const fs::path folder = base_ / "runs" / recipe.name;
      const auto actual = tensors(folder / "best.safetensors");
      ASSERT_EQ(actual.size(), expected.size());
      const double apart = distance(expected, actual, initial);
      std::cout << "  " << apart << "\n";
      // bf16 keeps eight bits of each product, and micro-batches round at other places.
      EXPECT_LT(apart, recipe.train.precision == "bf16" ? 0.015 : 1e-4);
      fs::remove_all(folder);
    }
  }
};

TEST_F(LanguagePlans, Gpt2HasThePlainWeights) { expect_plain_weights("gpt2"); }
TEST_F(LanguagePlans, LlamaHasThePlainWeights) { expect_plain_weights("llama"); }

}  // namespace
}  // namespace trestle::train
