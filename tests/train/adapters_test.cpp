#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/language_training.h"
#include "trestle/models/transformer/int8_rows.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/models/transformer/projection.h"
#include "trestle/train/language/export_model.h"
#include "trestle/train/language/text_model.h"

namespace trestle::train {
namespace {

using ::testing::HasSubstr;

// Adapters beside frozen weights of each type, trained from weights in a file.
class AdapterTraining : public LanguageTraining {
 protected:
  static recipe::Recipe plain_recipe(const std::string& model) {
    recipe::Recipe recipe = language_recipe(model);
    recipe.optimizer = {};
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 0.01;
    recipe.optimizer.epsilon = 1e-5;
    recipe.train.batch = 8;
    recipe.train.max_steps = 2;
    return recipe;
  }

  // Weights of the whole model, made by the first test that needs them. The matrices are enlarged:
  // with those of training's beginning, scores and gradients would be near 0.
  static fs::path base_weights(const std::string& model) {
    const fs::path file = base_ / ("base_" + model + ".safetensors");
    if (fs::exists(file)) return file;
    recipe::Recipe recipe = plain_recipe(model);
    recipe.name = "base_" + model;
    NamedTensors weights;
    for (const auto& [name, tensor] : tensors(train(recipe, {}).run_folder / "best.safetensors"))
      weights.emplace_back(name, tensor.dim() > 1 ? tensor * 10 : tensor);
    checkpoint::write_tensors(file, weights);
    checkpoint::write_tensors(base_ / "runs" / recipe.name / "best.safetensors", weights);
    return file;
  }

  // AdamW's two averages and step of each adapter.
  static void expect_state_of_adapters_alone(const fs::path& run) {
    const auto index = nlohmann::json::parse(read_file(run / "last/index.json"));
    std::size_t adapters = 0;
    for (const auto& tensor : index.at("tensors").at("weights"))
      if (tensor.at("name").get<std::string>().find(".lora") != std::string::npos) ++adapters;
    EXPECT_GT(adapters, 0U);
    const auto& state = index.at("tensors").at("optimizer");
    EXPECT_EQ(state.size(), 3 * adapters);
    for (const auto& tensor : state)
      EXPECT_THAT(tensor.at("name").get<std::string>(), HasSubstr(".lora"));
  }

  static recipe::Recipe tuned_recipe(const std::string& model, const std::string& frozen_type) {
    recipe::Recipe recipe = plain_recipe(model);
    recipe.name += "_" + model + "_" + frozen_type;
    recipe.model.weights = base_weights(model).string();
    recipe.adapters.rank = 2;
    recipe.adapters.frozen_type = frozen_type;
    recipe.optimizer.epsilon = 1e-4;  // with less, AdamW makes steps of the rounding of gradients
    if (model == "llama") recipe.adapters.targets = {"q_proj", "v_proj", "down_proj"};
    recipe.train.max_steps = 3;
    return recipe;
  }
};

TEST_F(AdapterTraining, RoundsFrozenWeightsOnceAndKeepsThem) {
  const auto before = tensors(base_weights("llama"));
  const TrainResult done = train(tuned_recipe("llama", "int8"), {});
  const auto after = tensors(done.run_folder / "best.safetensors");
  int matrices = 0;
  for (const auto& [name, tensor] : after) {
    if (tensor.scalar_type() != at::kChar) continue;
    const models::Int8Rows expected = models::to_int8_rows(before.at(name));
    EXPECT_TRUE(at::equal(tensor, expected.rows)) << name;
    const std::string scales = name.substr(0, name.rfind('.')) + ".scales";
    EXPECT_TRUE(at::equal(after.at(scales), expected.scales)) << scales;
    ++matrices;
  }
  EXPECT_EQ(matrices, 2 * 4);
}

TEST_F(AdapterTraining, ResumesWithTheSameBits) {
  for (const char* type : {"int8", "bf16"}) {
    SCOPED_TRACE(type);
    recipe::Recipe recipe = tuned_recipe("llama", type);
    const TrainResult whole = train(recipe, {});
    recipe.name += "_stopped";
    TrainHooks stopping;
    stopping.stop_after_steps = 1;
    const TrainResult stopped = train(recipe, stopping);
    EXPECT_FALSE(stopped.finished);
    resume(stopped.run_folder, {}, {});
    expect_same(whole.run_folder / "best.safetensors", stopped.run_folder / "best.safetensors");
  }
}

// A matrix of 1 MiB as fp32 lives during the product alone.
TEST_F(AdapterTraining, HoldNoDequantisedWeightBetweenForwardAndBackward) {
  models::Projection projection(
      models::ProjectionOptions{.inputs = 512, .parts = {{"all", 512}}, .bias = models::Bias::None},
      models::Drawn{.seed = 1, .module = "one", .type = at::kChar}, 0.02);
  const Device device = parse_devices("virtual:1").at(0);
  projection->to(device.torch);
  const at::Tensor x = torch::randn({2, 512}).to(device.torch).requires_grad_();
  const Bytes before = memory_usage(device.torch).current;
  const at::Tensor y = projection->forward(x);
  EXPECT_LE(memory_usage(device.torch).current - before, Bytes{16} << 10);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(
      x.grad().cpu()[0],
      models::from_int8_rows({projection->weight.cpu(), projection->scales.cpu()}, at::kFloat)
          .sum(0),
      1e-4, 1e-5));
}

// With SGD the adapters' weights are sums of their gradients; AdamW's state is sharded too.
TEST_F(AdapterTraining, RanksGiveTheWeightsOfOneRank) {
  struct Plan {
    const char* name;
    int replicate, shard;
    const char* level;
    int tensor = 1;
    bool sequence = false;
  };
  const std::vector<Plan> plans = {{"ddp2", 2, 1, ""},
                                   {"zero1_2", 1, 2, "optimizer_state"},
                                   {"zero2_2", 1, 2, "gradients"},
                                   {"zero3_2", 1, 2, "parameters"},
                                   {"ddp4", 4, 1, ""},
                                   {"zero1_4", 1, 4, "optimizer_state"},
                                   {"zero2_4", 1, 4, "gradients"},
                                   {"zero3_4", 1, 4, "parameters"},
                                   {"hsdp4", 2, 2, "parameters"},
                                   {"tensor2", 1, 1, "", 2},
                                   {"tensor4", 1, 1, "", 4, true},
                                   {"tensor2_zero1", 1, 2, "optimizer_state", 2, true},
                                   {"tensor2_zero3", 1, 2, "parameters", 2}};
  // By how much of the largest number. A product of bf16 weights rounds its input to bf16, where a
  // difference in the 24th bit can become one in the 8th.
  const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).abs().max() / b.abs().max()).item<double>();
  };
  for (const std::string type : {"fp32", "bf16", "int8"})
    for (const char* optimizer : {"sgd", "adamw"}) {
      const bool bf16 = type == "bf16";
      recipe::Recipe recipe = tuned_recipe(bf16 ? "gpt2" : "llama", type);
      recipe.name += text("_", optimizer);
      recipe.optimizer.name = optimizer;
      if (recipe.optimizer.name == "sgd") recipe.optimizer.learning_rate = 0.5;
      const auto expected = tensors(train(recipe, {}).run_folder / "best.safetensors");
      for (const auto& [name, tensor] : expected)
        if (name.ends_with("lora_v.b")) {  // q has a small gradient where attention is uniform
          EXPECT_GT(tensor.abs().max().item<double>(), 1e-4) << name;
        }
      for (const Plan& plan : plans) {
        SCOPED_TRACE(text(type, " ", optimizer, " ", plan.name));
        recipe::Recipe other = recipe;
        other.name += text("_", plan.name);
        // Tensor ranks add up in another order: inputs of the bf16 head differ in some 8th bits.
        const double tolerance = plan.tensor == 1 ? (bf16 ? 0.01 : 1e-4)
                                 : type == "fp32" ? 1e-4
                                                  : (bf16 ? 0.15 : 0.03);
        other.mesh.replicate = plan.replicate;
        other.mesh.shard = plan.shard;
        if (plan.shard > 1) other.mesh.shard_level = plan.level;
        other.mesh.tensor = plan.tensor;
        other.mesh.sequence_parallel = plan.sequence;
        const TrainResult done = on_ranks(plan.replicate * plan.shard * plan.tensor, other, {});
        const auto actual = tensors(done.run_folder / "best.safetensors");
        if (recipe.optimizer.name == "adamw") expect_state_of_adapters_alone(done.run_folder);
        ASSERT_EQ(actual.size(), expected.size());
        for (const auto& [name, tensor] : expected)
          if (name.find(".lora") == std::string::npos)
            EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
          else
            EXPECT_LT(apart(actual.at(name), tensor), tolerance) << name;
      }
    }
}

TEST_F(AdapterTraining, ExportedAdaptersAreLoadedAgain) {
  const TrainResult tuned = train(tuned_recipe("llama", "fp32"), {});
  const fs::path base = base_ / "exported_base", adapters = base_ / "exported_adapters";
  export_text_model(open_text_model(base_ / "runs/base_llama"), base);
  export_adapters(open_text_model(tuned.run_folder), adapters);
  const at::Tensor ids = torch::arange(97, 109).view({1, 12});
  const at::Tensor scores = open_text_model(tuned.run_folder).layers.forward(ids);
  EXPECT_FALSE(at::allclose(open_text_model(base).layers.forward(ids), scores, 1e-4, 1e-4));
  const TextModel together = open_text_model(base, {.adapters = adapters});
  EXPECT_TRUE(at::equal(together.layers.forward(ids), scores));
  EXPECT_THROW(open_text_model(tuned.run_folder, {.adapters = adapters}), UsageError);
  export_text_model(together, base_ / "merged");
  EXPECT_TRUE(
      at::allclose(open_text_model(base_ / "merged").layers.forward(ids), scores, 1e-4, 1e-5));

  recipe::Recipe again = tuned_recipe("llama", "fp32");
  again.name += "_again";
  again.adapters.weights = adapters.string();
  again.optimizer.learning_rate = 1e-12;
  const auto first = tensors(tuned.run_folder / "best.safetensors");
  const auto expect_first = [&](const fs::path& run) {
    for (const auto& [name, tensor] : tensors(run / "best.safetensors"))
      EXPECT_TRUE(at::allclose(tensor, first.at(name), 0, 1e-9)) << name;
  };
  expect_first(train(again, {}).run_folder);
  again.name += "_2";
  again.mesh.replicate = 2;
  expect_first(on_ranks(2, again, {}).run_folder);
  again.name += "_3";
  again.mesh.replicate = 1;
  again.mesh.tensor = 2;
  expect_first(on_ranks(2, again, {}).run_folder);
}

// A run that tensor ranks saved has whole matrices: one process resumes and exports it, and others
// resume what one process saved.
TEST_F(AdapterTraining, TensorRanksResumeAndExportAsOneProcess) {
  for (const std::string type : {"fp32", "int8"}) {
    const double tolerance = type == "int8" ? 0.03 : 1e-4;  // the head of int8 blocks is bf16
    const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
      return (a - b).abs().max().item<double>() <= tolerance * b.abs().max().item<double>();
    };
    for (const auto& [before, after] : std::vector<std::pair<int, int>>{{2, 1}, {1, 4}, {4, 2}}) {
      SCOPED_TRACE(text(type, " ", before, " ", after));
      recipe::Recipe recipe = tuned_recipe("llama", type);
      recipe.adapters.dropout = 0.2;
      const auto expected = tensors(train(recipe, {}).run_folder / "best.safetensors");
      recipe.name += text("_stopped_", before, "_", after);
      recipe.mesh.tensor = before;
      TrainHooks stopping;
      stopping.stop_after_steps = 1;
      const fs::path run =
          (before > 1 ? on_ranks(before, recipe, stopping) : train(recipe, stopping)).run_folder;
      const Changes changes = {{"mesh.tensor", text(after)}};
      if (after > 1)
        on_ranks(after, recipe, {}, run, changes);
      else
        resume(run, changes, {});
      const auto actual = tensors(run / "best.safetensors");
      ASSERT_EQ(actual.size(), expected.size());
      for (const auto& [name, tensor] : expected)
        if (name.find(".lora") == std::string::npos)
          EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
        else
          EXPECT_TRUE(near(actual.at(name), tensor)) << name;
      const TextModel model = open_text_model(run);
      EXPECT_EQ(export_adapters(model, base_ / (recipe.name + "_peft")).tensors, 2U * 2 * 3);
      const at::Tensor ids = torch::arange(97, 109).view({1, 12});
      const at::Tensor scores = model.layers.forward(ids);
      export_text_model(model, base_ / (recipe.name + "_merged"));
      EXPECT_TRUE(
          at::allclose(open_text_model(base_ / (recipe.name + "_merged")).layers.forward(ids),
                       scores, type == "int8" ? 1e-2 : 1e-4, type == "int8" ? 1e-2 : 1e-5));
    }
  }
}

TEST_F(AdapterTraining, NamesAdaptersThatDoNotFit) {
  const TrainResult tuned = train(tuned_recipe("llama", "fp32"), {});
  const fs::path adapters = base_ / "unfit_adapters";
  export_adapters(open_text_model(tuned.run_folder), adapters);
  const auto message = [&](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  };
  recipe::Recipe recipe = tuned_recipe("llama", "fp32");
  recipe.adapters.weights = adapters.string();
  recipe.adapters.rank = 3;
  recipe.adapters.alpha = 5;
  const std::string other = message([&] { train(recipe, {}); });
  EXPECT_THAT(other, HasSubstr("rank 2, and the recipe's 'adapter_rank' is 3"));
  EXPECT_THAT(other, HasSubstr("alpha 16, and the recipe's 'adapter_alpha' is 5"));
  std::string config = read_file(adapters / "adapter_config.json");
  config.replace(config.find("\"r\": 2"), 6, "\"r\": 4");
  write_file(adapters / "adapter_config.json", config);
  const std::string shapes =
      message([&] { open_text_model(base_ / "runs/base_llama", {.adapters = adapters}); });
  EXPECT_THAT(shapes, HasSubstr("adapter_model.safetensors"));
  EXPECT_THAT(shapes, HasSubstr("layers.0.self_attn.q_proj.lora_A.weight' is Float [2, 16]"));
  EXPECT_THAT(shapes, HasSubstr("is Float [4, 16]"));
  EXPECT_THAT(message([&] { open_text_model(base_ / "runs/base_llama", {.adapters = base_}); }),
              HasSubstr("no folder of adapters"));
}

}  // namespace
}  // namespace trestle::train
