#pragma once

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "tests/train/training.h"
#include "trestle/data/loader.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/tokens/files/prepare.h"
#include "trestle/tokens/files/token_rows.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"

// Small language models, and the same training in plain libtorch.
namespace trestle::train {

// Language models on documents of 1 to 41 bytes, packed into rows of 16: the rows of a batch have
// different numbers of targets, and one of them hardly any.
class LanguageTraining : public Training {
 protected:
  static void SetUpTestSuite() {
    Training::SetUpTestSuite();
    install_virtual_devices({.count = 3});  // before the first backward of this process
    std::ofstream lines(base_ / "documents.jsonl");
    for (int i = 0; i < 40; ++i) {
      std::string words;  // of all letters: attention to equal letters has no gradient
      for (int j = 0; j <= (i * 7) % 41; ++j)
        words += static_cast<char>('a' + (i * 5 + j * j * 3 + j) % 26);
      lines << R"({"text": ")" << words << "\"}\n";
    }
    lines.close();
    tokens::prepare(
        {(base_ / "documents.jsonl").string()}, *tokens::bytes_tokenizer(),
        {.out = base_ / "text", .validation = 0.2, .save_tokenizer = [](const fs::path& to) {
           tokens::copy_tokenizer("bytes", to);
         }});
  }

  static recipe::Recipe language_recipe(const std::string& model = "gpt2") {
    recipe::Recipe recipe = Training::recipe();
    recipe.model.name = model;
    recipe.model.width = 16;
    recipe.transformer.layers = 2;
    recipe.transformer.heads = 4;
    if (model == "llama") recipe.transformer.kv_heads = 2;
    recipe.transformer.context = 16;
    recipe.data = {};
    recipe.data.name = "tokens";
    recipe.data.tokens = (base_ / "text").string();
    recipe.data.order = "documents";
    recipe.devices.use = "cpu";
    recipe.devices.threads = 1;
    recipe.pipeline.balance = {5};
    recipe.pipeline.micro_batches = 1;
    recipe.pipeline.recompute = {"never"};
    recipe.optimizer = {};
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 1e-3;
    recipe.optimizer.epsilon = 1e-5;
    recipe.optimizer.weight_decay = 0.1;
    recipe.optimizer.no_weight_decay = {"one_dimensional"};
    recipe.optimizer.clip_grad_norm = 1;
    recipe.train.batch = 6;
    recipe.train.epochs = 1;
    recipe.train.max_steps = 5;
    recipe.train.drop_last = true;
    recipe.train.predict = false;
    return recipe;
  }

  // Runs a recipe over replicas and shards, with two micro-batches.
  static std::function<void(recipe::Recipe&)> mesh(std::int64_t replicate, std::int64_t shard,
                                                   const char* level) {
    return [=](recipe::Recipe& r) {
      r.mesh.replicate = replicate;
      r.mesh.shard = shard;
      if (shard > 1) r.mesh.shard_level = level;
      r.pipeline.micro_batches = 2;
    };
  }

  // SGD, whose steps show a gradient of the wrong size, which AdamW's hide. In bf16 two correct
  // gradients differ too much for AdamW: it divides small elements by their own size.
  static void in_bf16(recipe::Recipe& recipe) {
    recipe.train.precision = "bf16";
    recipe.optimizer = {};
    recipe.optimizer.name = "sgd";
    recipe.optimizer.learning_rate = 0.1;
    recipe.optimizer.momentum = 0.9;
  }

  // The same steps in plain libtorch: whole batches, torch's loss and optimizer.
  static std::map<std::string, at::Tensor> plain_weights(const recipe::Recipe& recipe) {
    const auto config = models::read_config(base_ / "runs" / recipe.name / "config.json");
    nn::Layers net = models::transformer(config, {.seed = 42});
    const bool bf16 = recipe.train.precision == "bf16";
    const auto optimizer = bf16 ? plain_sgd(net) : plain_adamw(net);
    const tokens::TokenRows rows(
        std::make_shared<tokens::TokenSet>(base_ / "text", "train"),
        {.order = tokens::RowOrder::Documents, .context = 16, .vocabulary = 256, .seed = 42});
    for (const auto& numbers : shuffled_batches(rows.count(), 6, 5)) {
      at::Tensor ids = torch::empty({6, 16, 2}, torch::kLong),
                 targets = torch::empty({6, 16}, torch::kLong);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::vector<std::int64_t> a(16), b(16), c(16);
        rows.read(numbers[i], 0, {.ids = a, .targets = b, .places = c});
        const auto row = static_cast<std::int64_t>(i);
        ids[row].select(1, 0).copy_(torch::tensor(a));
        ids[row].select(1, 1).copy_(torch::tensor(c));
        targets[row].copy_(torch::tensor(b));
      }
      optimizer->zero_grad();
      at::autocast::set_autocast_enabled(at::kCPU, bf16);
      at::Tensor scores = net.forward(ids);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      scores = scores.to(at::kFloat).flatten(0, 1);
      torch::nn::functional::cross_entropy(scores, targets.flatten()).backward();
      if (!bf16) torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
      optimizer->step();
    }
    const auto named = net.named_parameters();
    return {named.begin(), named.end()};
  }

  static std::unique_ptr<torch::optim::Optimizer> plain_sgd(const nn::Layers& net) {
    return std::make_unique<torch::optim::SGD>(net.parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  static std::unique_ptr<torch::optim::Optimizer> plain_adamw(const nn::Layers& net) {
    std::vector<at::Tensor> decayed, others;
    for (const auto& [name, tensor] : net.named_parameters())
      (tensor.dim() > 1 ? decayed : others).push_back(tensor);
    const auto options = [&](double decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(1e-3).eps(1e-5).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(decayed, options(0.1));
    groups.emplace_back(others, options(0));
    return std::make_unique<torch::optim::AdamW>(groups);
  }

  // The order of the loader, from a loader over the numbers themselves.
  static std::vector<std::vector<std::int64_t>> shuffled_batches(std::int64_t count,
                                                                 std::int64_t batch,
                                                                 std::int64_t most) {
    struct Numbers : data::Dataset {
      std::int64_t count = 0;
      std::int64_t size() const override { return count; }
      data::Sample get(std::int64_t index) const override {
        return {torch::tensor({index}), torch::tensor({index}), text(index)};
      }
    };
    auto numbers = std::make_shared<Numbers>();
    numbers->count = count;
    data::Loader loader(numbers, {.batch = batch,
                                  .order = data::Order::Shuffled,
                                  .last_batch = data::LastBatch::Drop,
                                  .seed = 42});
    std::vector<std::vector<std::int64_t>> all;
    for (data::Batch& one : loader.epoch(0)) {
      std::vector<std::int64_t> row;
      for (std::int64_t i = 0; i < one.inputs.size(0); ++i)
        row.push_back(one.inputs[i].item<std::int64_t>());
      all.push_back(row);
      if (std::ssize(all) == most) break;
    }
    return all;
  }

  static void expect_weights(const std::map<std::string, at::Tensor>& expected,
                             const fs::path& run) {
    const auto actual = tensors(run / "best.safetensors");
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::allclose(tensor, actual.at(name), 1e-4, 2e-6))
          << name << " differs by " << (tensor - actual.at(name)).abs().max().item<double>();
  }

  struct Plan {
    std::string name;
    int ranks = 1;
    std::function<void(recipe::Recipe&)> set;
  };
  // Trains under several plans; each gives these weights.
  static void expect_weights_of_plans(const std::map<std::string, at::Tensor>& expected,
                                      const recipe::Recipe& first, const std::vector<Plan>& plans) {
    for (const Plan& plan : plans) {
      SCOPED_TRACE(plan.name);
      recipe::Recipe other = first;
      other.name += "_" + plan.name;
      plan.set(other);
      if (plan.ranks == 1)
        train(other);
      else
        on_ranks(plan.ranks, other, {});
      expect_weights(expected, base_ / "runs" / other.name);
    }
  }
  // The same with the weights of the plain loop.
  static void expect_same_for(const std::string& model, const std::vector<Plan>& plans) {
    recipe::Recipe first = language_recipe(model);
    first.name += "_" + model;
    train(first);
    const auto expected = plain_weights(first);
    expect_weights(expected, base_ / "runs" / first.name);
    expect_weights_of_plans(expected, first, plans);
  }
};

}  // namespace trestle::train
