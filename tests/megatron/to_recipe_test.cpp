#include "trestle/megatron/to_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/megatron/example_flags.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/megatron/known_flags.h"
#include "trestle/recipe/recipe.h"

namespace trestle::megatron {
namespace {

using recipe::Recipe;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Recipe recipe_of(const std::string& flags, int ranks = 0) {
  return recipe::parse_recipe(to_recipe(flags, ranks), "recipe");
}

TEST(MegatronRecipe, HasTheModelOfMegatrons345M) {
  const Recipe recipe = recipe_of(flags_of_345m);
  EXPECT_EQ(recipe.model.name, "gpt2");
  EXPECT_EQ(recipe.model.width, 1024);
  EXPECT_EQ(recipe.transformer.layers, 24);
  EXPECT_EQ(recipe.transformer.heads, 16);
  EXPECT_EQ(recipe.transformer.kv_heads, 0);
  EXPECT_EQ(recipe.transformer.mlp, 4096);
  EXPECT_EQ(recipe.transformer.context, 1024);
  EXPECT_EQ(recipe.transformer.vocabulary, 50257);
  EXPECT_EQ(recipe.transformer.vocabulary_multiple, 128);
  EXPECT_EQ(recipe.transformer.tied, "yes");
  EXPECT_EQ(recipe.transformer.dropout, 0.1);
  EXPECT_EQ(recipe.transformer.attention_dropout, 0.1);
  EXPECT_EQ(recipe.transformer.attention, "written");
  EXPECT_EQ(recipe.transformer.activation, "auto");
  EXPECT_EQ(recipe.transformer.norm_epsilon, 1e-5);
  EXPECT_EQ(recipe.transformer.initial_deviation, 0.02);
}

TEST(MegatronRecipe, HasTheTrainingOfMegatrons345M) {
  const Recipe recipe = recipe_of(flags_of_345m);
  EXPECT_EQ(recipe.train.batch, 4);
  EXPECT_EQ(recipe.train.accumulate, 2);
  EXPECT_EQ(recipe.train.max_steps, 500000);
  EXPECT_EQ(recipe.train.epochs, 500);
  EXPECT_EQ(recipe.train.precision, "fp16");
  EXPECT_EQ(recipe.train.seed, 1234);
  EXPECT_EQ(recipe.train.log_every, 200);
  EXPECT_EQ(recipe.train.save_every, 10000);
  EXPECT_EQ(recipe.data.tokens, "data/tokens");
  EXPECT_EQ(recipe.data.row_tokens, 1024);
  EXPECT_EQ(recipe.data.count, 8000);
  EXPECT_EQ(recipe.data.validation_windows, 80);
  EXPECT_EQ(recipe.optimizer.name, "adamw");
  EXPECT_EQ(recipe.optimizer.learning_rate, 0.00015);
  EXPECT_EQ(recipe.optimizer.learning_rate_schedule, "cosine_decay");
  EXPECT_EQ(recipe.optimizer.warm_up, 3200);
  EXPECT_EQ(recipe.optimizer.schedule_length, 316800);
  EXPECT_EQ(recipe.optimizer.min_learning_rate, 1e-5);
  EXPECT_EQ(recipe.optimizer.weight_decay, 0.01);
  EXPECT_THAT(recipe.optimizer.no_weight_decay, ElementsAre("one_dimensional"));
  EXPECT_EQ(recipe.optimizer.beta2, 0.999);
  EXPECT_EQ(recipe.optimizer.clip_grad_norm, 1);
  EXPECT_THAT(recipe.train.deepspeed_config,
              AllOf(HasSubstr("\"initial_scale_power\": 32"), HasSubstr("\"hysteresis\": 2"),
                    HasSubstr("\"loss_scale_window\": 1000")));
  EXPECT_EQ(recipe.mesh.pipeline, 0);  // one rank
}

// recipes/gpt_345m.toml, behind the comment at its top.
TEST(MegatronRecipe, IsTheRecipeOfThe345MExample) {
  const std::string file = read_file(std::string(TRESTLE_SOURCE_DIR) + "/recipes/gpt_345m.toml");
  const std::string first = "# The recipe of Megatron-LM's flags";
  ASSERT_NE(file.find(first), std::string::npos);
  EXPECT_EQ(file.substr(file.find(first)), to_recipe(flags_of_345m));
}

TEST(MegatronRecipe, ExplainsTheTextAndFlagsWithoutAKey) {
  EXPECT_THAT(to_recipe(flags_of_345m),
              AllOf(HasSubstr("#   trestle text prepare TEXT --tokenizer FOLDER --validation 0.05 "
                              "--out data/tokens"),
                    HasSubstr("#   --data-impl mmap: token files are mapped"),
                    HasSubstr("#   --load $CHECKPOINT_PATH: trestle train --resume runs/NAME"),
                    HasSubstr("layers = 24                     # --num-layers\n"),
                    HasSubstr("# the default of --hidden-dropout\n")));
}

TEST(MegatronRecipe, HasLlamas) {
  const Recipe recipe = recipe_of(llama_flags);
  EXPECT_EQ(recipe.model.name, "llama");
  EXPECT_EQ(recipe.transformer.kv_heads, 4);
  EXPECT_EQ(recipe.transformer.mlp, 1344);  // int(4 x 512 x 2 / 3 / 64) x 64: Megatron rounds down
  EXPECT_EQ(recipe.transformer.rope_theta, 500000);
  EXPECT_EQ(recipe.transformer.norm_epsilon, 1e-6);
  EXPECT_EQ(recipe.transformer.initial_deviation, 0.01);
  EXPECT_EQ(recipe.transformer.tied, "no");
  EXPECT_EQ(recipe.transformer.context, 256);
  EXPECT_EQ(recipe.data.row_tokens, 128);
  EXPECT_EQ(recipe.transformer.vocabulary, 0);  // that of the tokenizer
  EXPECT_EQ(recipe.transformer.attention, "fused");
  EXPECT_EQ(recipe.train.precision, "bf16");
  EXPECT_EQ(recipe.train.deepspeed_config, "");
  EXPECT_THAT(to_recipe(llama_flags), HasSubstr("--tokenizer my/tokenizer.json"));
}

TEST(MegatronRecipe, DividesRanksAndTheBatch) {
  const std::string flags = smallest_flags;
  const Recipe one = recipe_of(flags + "--global-batch-size 24");
  EXPECT_EQ(one.train.batch, 2);
  EXPECT_EQ(one.train.accumulate, 12);
  const Recipe four = recipe_of(flags + "--global-batch-size 24 --nproc_per_node 2 --nnodes 2");
  EXPECT_EQ(four.mesh.replicate, 4);
  EXPECT_EQ(four.train.batch, 8);
  EXPECT_EQ(four.train.accumulate, 3);
  const Recipe stages =
      recipe_of(flags + "--global-batch-size 24 --pipeline-model-parallel-size 2", 4);
  EXPECT_EQ(stages.mesh.pipeline, 2);
  EXPECT_EQ(stages.mesh.replicate, 2);
  EXPECT_EQ(stages.train.batch, 24);
  EXPECT_EQ(stages.train.accumulate, 1);
  EXPECT_EQ(stages.pipeline.micro_batches, 6);
  EXPECT_EQ(stages.pipeline.schedule, "1f1b");
  EXPECT_THAT(stages.pipeline.balance, ElementsAre(3, 4));
  const Recipe none = recipe_of(flags, 3);  // as in Megatron: one micro-batch of each rank
  EXPECT_EQ(none.train.batch, 6);
  EXPECT_EQ(none.train.accumulate, 1);
}

TEST(MegatronRecipe, DividesBlocksUnevenlyAtTheEnds) {
  const Recipe recipe =
      recipe_of(std::string(smallest_flags) +
                "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 1 "
                "--decoder-last-pipeline-num-layers 1");
  EXPECT_THAT(recipe.pipeline.balance, ElementsAre(2, 2, 3));
}

TEST(MegatronRecipe, GivesEachRankItsVirtualStages) {
  for (const char* flag :
       {"--num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank 2"}) {
    const Recipe recipe = recipe_of(
        text(smallest_flags, "--pipeline-model-parallel-size 2 ", flag, " --global-batch-size 8"));
    EXPECT_EQ(recipe.pipeline.schedule, "interleaved_1f1b") << flag;
    EXPECT_EQ(recipe.pipeline.stages_per_rank, 2) << flag;
    EXPECT_THAT(recipe.pipeline.balance, ElementsAre(2, 1, 1, 3)) << flag;
  }
}

TEST(MegatronRecipe, MapsShardingToLevels) {
  const auto level = [](const std::string& more, int ranks) {
    const Recipe recipe = recipe_of(smallest_flags + more, ranks);
    return text(recipe.mesh.replicate, " ", recipe.mesh.shard, " ", recipe.mesh.shard_level);
  };
  EXPECT_EQ(level("", 4), "4 1 parameters");
  EXPECT_EQ(level("--use-distributed-optimizer", 4), "1 4 optimizer_state");
  EXPECT_EQ(level("--use-distributed-optimizer --num-distributed-optimizer-instances 2", 4),
            "2 2 optimizer_state");
  EXPECT_EQ(level("--use-megatron-fsdp", 4), "1 4 parameters");
  const std::string strategy = "--use-megatron-fsdp --data-parallel-sharding-strategy ";
  EXPECT_EQ(level(strategy + "optim", 4), "1 4 optimizer_state");
  EXPECT_EQ(level(strategy + "optim_grads", 4), "1 4 gradients");
  EXPECT_EQ(level(strategy + "no_shard", 4), "4 1 parameters");
  EXPECT_EQ(level("--use-torch-fsdp2", 2), "1 2 parameters");
  EXPECT_EQ(level("--use-distributed-optimizer", 1), "1 1 parameters");
}

TEST(MegatronRecipe, NamesTensorRanks) {
  const std::string flags = std::string(smallest_flags) + "--tensor-model-parallel-size 4 ";
  EXPECT_THAT(to_recipe(flags),
              AllOf(HasSubstr("\ntensor = 4 "), HasSubstr("\npipeline = 1 "),
                    HasSubstr("vocabulary_multiple = 512 "), Not(HasSubstr("sequence_parallel"))));
  const Recipe recipe = recipe_of(flags + "--sequence-parallel", 8);
  EXPECT_EQ(recipe.mesh.tensor, 4);
  EXPECT_TRUE(recipe.mesh.sequence_parallel);
  EXPECT_EQ(recipe.mesh.replicate, 2);
  EXPECT_THAT(to_recipe(std::string(smallest_flags) + "--sequence-parallel"),
              AllOf(HasSubstr("--sequence-parallel: one tensor rank has the whole sequence"),
                    Not(HasSubstr("sequence_parallel = true"))));
}

TEST(MegatronRecipe, MapsRecomputation) {
  const auto checkpoint = [](const std::string& more) {
    return recipe_of(smallest_flags + more).pipeline.checkpoint;
  };
  EXPECT_THAT(checkpoint(""), ElementsAre());
  EXPECT_THAT(checkpoint("--recompute-activations"), ElementsAre("attention"));
  EXPECT_THAT(checkpoint("--recompute-granularity selective --recompute-modules core_attn"),
              ElementsAre("attention"));
  EXPECT_THAT(checkpoint("--recompute-granularity full --recompute-method uniform"),
              ElementsAre("blocks"));
  EXPECT_THAT(checkpoint("--recompute-granularity full --recompute-method block "
                         "--recompute-num-layers 1 --pipeline-model-parallel-size 2"),
              ElementsAre("blocks.0", "blocks.2"));
  const std::string full =
      smallest_flags + std::string(
                           "--recompute-granularity full --recompute-method uniform "
                           "--tensor-model-parallel-size 2 ");
  EXPECT_FALSE(recipe_of(full).pipeline.split_recomputed);
  EXPECT_TRUE(recipe_of(full + "--distribute-saved-activations").pipeline.split_recomputed);
}

TEST(MegatronRecipe, MapsLearningRates) {
  const auto optimizer = [](const std::string& more) {
    return recipe_of(smallest_flags + more).optimizer;
  };
  EXPECT_EQ(optimizer("").learning_rate_schedule, "linear_decay");  // Megatron's default
  EXPECT_EQ(optimizer("").schedule_length, 100);
  EXPECT_EQ(optimizer("").warm_up, 0);
  const auto samples =
      optimizer("--lr-decay-samples 120 --lr-warmup-samples 20 --lr-warmup-init 1e-4");
  EXPECT_EQ(samples.warm_up, 10);
  EXPECT_EQ(samples.schedule_length, 50);
  EXPECT_DOUBLE_EQ(samples.warm_up_from, 0.1);
  EXPECT_EQ(optimizer("--lr-decay-style constant").learning_rate_schedule, "constant");
  const auto sgd = optimizer("--optimizer sgd --weight-decay 0");
  EXPECT_EQ(sgd.name, "sgd");
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_THAT(sgd.no_weight_decay, ElementsAre());
}

TEST(MegatronRecipe, NamesTheTextByItsPrefix) {
  const auto tokens = [](const std::string& path) {
    return recipe_of(smallest_flags + std::string("--data-path ") + path).data.tokens;
  };
  EXPECT_EQ(tokens("/texts/plays_text_document"), "data/plays");
  EXPECT_EQ(tokens("plays"), "data/plays");
  EXPECT_EQ(tokens("$DATA"), "data/tokens");
}

// A flag never vanishes: it is the comment of a key, a line of the comments, or an error.
TEST(MegatronRecipe, ShowsEveryFlagThatItAccepts) {
  for (const KnownFlag& known : known_flags()) {
    if (known.kind != KnownFlag::Kind::Idle) continue;
    const std::string value = known.values == KnownFlag::Values::None ? "" : " 1";
    EXPECT_THAT(to_recipe(smallest_flags + std::string(known.name) + value),
                HasSubstr(text("#   ", known.name, value, ": ", known.reason)));
  }
  EXPECT_THAT(to_recipe(std::string(smallest_flags) + "--sgd-momentum 0.5 --rotary-base 7"),
              AllOf(HasSubstr("#   --sgd-momentum 0.5: has no effect beside the other flags"),
                    HasSubstr("#   --rotary-base 7: has no effect beside the other flags")));
}

TEST(MegatronRecipe, KeepsHostileValuesInComments) {
  const std::string toml =
      to_recipe(std::string(smallest_flags) + "--save 'x\n[train]\nbatch = 7' --use-flash-attn");
  EXPECT_EQ(recipe::parse_recipe(toml, "recipe").train.batch, 2);
  EXPECT_THAT(toml, HasSubstr("--save x?[train]?batch = 7"));
}

}  // namespace
}  // namespace trestle::megatron
