#include "trestle/deepspeed/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/deepspeed/config_files.h"
#include "tests/fuzz/fuzz.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::deepspeed {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(DeepspeedConfig, ReadsTheStage2ExampleUnchanged) {
  const DeepspeedConfig config = parse(stage_2, 4);
  EXPECT_EQ(config.stage, 2);
  EXPECT_EQ(config.level(), "gradients");
  EXPECT_EQ(config.reduce_bucket, 500'000'000);
  EXPECT_TRUE(config.ignore_unused);
  EXPECT_EQ(config.precision, "fp16");
  EXPECT_TRUE(config.scaler.dynamic);
  EXPECT_EQ(config.scaler.initial_scale, 65536);
  EXPECT_EQ(config.scaler.growth_interval, 1000);
  EXPECT_EQ(config.scaler.hysteresis, 2);
  EXPECT_EQ(config.scaler.lowest_scale, 1);
  EXPECT_EQ(config.train_batch, 64);
  EXPECT_EQ(config.micro_batch, 16);
  EXPECT_EQ(config.accumulate, 1);
  EXPECT_FALSE(config.optimizer || config.schedule);
  EXPECT_THAT(config.without_effect,
              ElementsAre(HasSubstr("zero_optimization.allgather_partitions true: "),
                          HasSubstr("zero_optimization.reduce_scatter true: "),
                          HasSubstr("zero_optimization.allgather_bucket_size 500000000.0: ")));
  EXPECT_THAT(config.notes, IsEmpty());
  EXPECT_EQ(to_text(config),
            "ds_config.json, as resolved:\n"
            "batch       64 per step = 16 per micro-batch x 1 accumulated x 4 ranks\n"
            "zero        stage 2: gradients and the optimizer's state are sharded\n"
            "buckets     500,000,000 elements at a time\n"
            "precision   fp16, loss scale 65536, doubled after 1000 good steps, halved after "
            "2 overflows, never below 1\n"
            "optimizer   the program's own\n"
            "schedule    none\n"
            "clipping    a gradient norm above 1, DeepSpeed's default since 0.19; "
            "\"gradient_clipping\": 0 turns it off\n"
            "without effect in this run:\n"
            "  zero_optimization.allgather_partitions true: shards are all-gathered; the "
            "results are the same either way\n"
            "  zero_optimization.reduce_scatter true: from stage 1 on gradients are "
            "reduce-scattered; the results are the same either way\n"
            "  zero_optimization.allgather_bucket_size 500000000.0: parameters are all-gathered in "
            "the buckets of the gradients\n");
}

// As in DeepSpeed 0.19.
TEST(DeepspeedConfig, ClipsAtOneWhereTheFileIsSilent) {
  for (const char* const keys : {"", R"("gradient_clipping": null)"}) {
    EXPECT_EQ(parse(with(keys)).clip_grad_norm, 1);
    EXPECT_TRUE(parse(with(keys)).clips_by_default);
  }
  for (const double norm : {0.0, 0.5, 1.0}) {
    const DeepspeedConfig config = parse(with(text(R"("gradient_clipping": )", norm)));
    EXPECT_EQ(config.clip_grad_norm, norm);
    EXPECT_FALSE(config.clips_by_default);
    EXPECT_THAT(to_text(config), Not(HasSubstr("default since 0.19")));
  }
}

TEST(DeepspeedConfig, StoresEveryKey) {
  const DeepspeedConfig config = parse(everything, 4);
  EXPECT_EQ(config.micro_batch, 8);
  EXPECT_EQ(config.accumulate, 2);
  EXPECT_TRUE(config.drop_last);
  EXPECT_EQ(config.clip_grad_norm, 1);
  EXPECT_EQ(config.communication, "fp32");
  EXPECT_EQ(config.level(), "parameters");
  EXPECT_EQ(config.reduce_bucket, 1'000'000);
  EXPECT_EQ(config.shard_ranks, 2);
  EXPECT_TRUE(config.offload_optimizer && config.offload_parameters);
  EXPECT_EQ(config.scaler.initial_scale, 1024);
  EXPECT_EQ(config.scaler.growth_interval, 500);
  EXPECT_EQ(config.scaler.hysteresis, 3);
  EXPECT_TRUE(config.scaler.consecutive_hysteresis);
  EXPECT_EQ(config.scaler.lowest_scale, 0.25);
  ASSERT_TRUE(config.optimizer && config.schedule);
  EXPECT_EQ(config.optimizer->name, "adamw");
  EXPECT_EQ(config.optimizer->learning_rate, 1.23456789e-3);
  EXPECT_EQ(config.optimizer->beta1, 0.8);
  EXPECT_EQ(config.optimizer->beta2, 0.95);
  EXPECT_EQ(config.optimizer->epsilon, 1e-6);
  EXPECT_EQ(config.optimizer->weight_decay, 0.1);
  EXPECT_EQ(config.schedule->type, "WarmupDecayLR");
  EXPECT_EQ(config.schedule->warmup_num_steps, 100);
  EXPECT_EQ(config.schedule->total_num_steps, 10'000);
  EXPECT_EQ(config.schedule->warmup_type, "linear");
  const std::string said = to_text(config);
  for (const char* key :
       {"steps_per_print 10", "prescale_gradients false", "stage3_max_live_parameters",
        "sub_group_size", "offload_optimizer.pin_memory", "number_checkpoints 4",
        "checkpoint.tag_validation \"Warn\"", "checkpoint.load_universal", "tensorboard",
        "overlap_comm true", "reduce_bucket_size 1000000: at stage 3"})
    EXPECT_THAT(said, HasSubstr(key)) << "has no effect, which must be reported";
  EXPECT_THAT(said, AllOf(HasSubstr("over 2 ranks, 2 replicas"),
                          HasSubstr("adamw · learning rate 0.00123456789 · weight decay 0.1"),
                          HasSubstr("0 to 0.0003 in 100 steps (linear), back to 0 by step 10000"),
                          HasSubstr("a gradient norm above 1")));
}

TEST(DeepspeedConfig, MapsStagesToLevels) {
  const char* const levels[] = {"none", "optimizer_state", "gradients", "parameters"};
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(parse(zero("\"stage\": " + std::to_string(stage))).level(), levels[stage]);
  EXPECT_EQ(parse(with("")).level(), "none");
  EXPECT_FALSE(parse(zero(R"("stage": 2, "ignore_unused_parameters": false)")).ignore_unused);
  const DeepspeedConfig old = parse(with(R"("zero_optimization": true)"));
  EXPECT_EQ(old.level(), "optimizer_state");
  EXPECT_THAT(old.notes, ElementsAre(HasSubstr("stage 1")));
  const DeepspeedConfig offload = parse(zero(R"("stage": 1, "cpu_offload": true)"));
  EXPECT_TRUE(offload.offload_optimizer);
  EXPECT_THAT(offload.notes, ElementsAre(HasSubstr("offload_optimizer")));
  EXPECT_THAT(
      parse(zero(R"("stage3_model_persistence_threshold": 9223372036854775807)")).without_effect,
      testing::SizeIs(1));
}

TEST(DeepspeedConfig, ReadsPrecisionAndLossScale) {
  EXPECT_EQ(parse(with("")).precision, "fp32");
  EXPECT_EQ(parse(with(R"("fp16": {"enabled": false, "loss_scale": 8})")).precision, "fp32");
  EXPECT_EQ(parse(with(R"("bf16": {"enabled": true})")).precision, "bf16");
  EXPECT_EQ(parse(with(R"("bfloat16": {"enabled": true})")).precision, "bf16");
  const DeepspeedConfig fixed = parse(with(R"("fp16": {"enabled": true, "loss_scale": 128})"));
  EXPECT_FALSE(fixed.scaler.dynamic);
  EXPECT_EQ(fixed.scaler.initial_scale, 128);
  EXPECT_THAT(to_text(fixed), HasSubstr("fp16, loss scale 128\n"));
}

TEST(DeepspeedConfig, MapsOptimizers) {
  const DeepspeedConfig adam = parse(optimizer("Adam", ""));
  EXPECT_EQ(adam.optimizer->name, "adamw") << "DeepSpeed's default";
  EXPECT_EQ(adam.optimizer->weight_decay, 0);
  EXPECT_THAT(adam.notes, ElementsAre(HasSubstr("adam_w_mode")));
  EXPECT_EQ(parse(optimizer("Adam", R"("adam_w_mode": false)")).optimizer->name, "adam");
  EXPECT_EQ(parse(optimizer("AdamW", R"("adam_w_mode": false)")).optimizer->name, "adamw");
  EXPECT_EQ(parse(optimizer("AdamW", R"("torch_adam": true)")).optimizer->weight_decay, 0.01);
  EXPECT_EQ(
      parse(optimizer("AdamW", R"("torch_adam": true, "weight_decay": 0)")).optimizer->weight_decay,
      0);
  EXPECT_EQ(parse(optimizer("AdamW", R"("torch_adam": true, "weight_decay": null)"))
                .optimizer->weight_decay,
            0.01);
  const DeepspeedConfig sgd = parse(
      optimizer("SGD", R"("lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 1e-4)"));
  EXPECT_EQ(sgd.optimizer->name, "sgd");
  EXPECT_EQ(sgd.optimizer->momentum, 0.9);
  EXPECT_TRUE(sgd.optimizer->nesterov);
  const DeepspeedConfig rmsprop = parse(optimizer("RMSprop", R"("alpha": 0.9, "centered": true)"));
  EXPECT_EQ(rmsprop.optimizer->learning_rate, 0.01);
  EXPECT_TRUE(rmsprop.optimizer->centered);
  EXPECT_THAT(to_text(rmsprop), HasSubstr("alpha 0.9 · epsilon 1e-08 · centered"));
}

// DeepSpeed's OneCycle changes the betas of an optimizer, and nothing in an optimizer without
// betas.
TEST(DeepspeedConfig, AppliesOneCycleToTheOptimizersMomentum) {
  const auto of = [](const std::string& type) {
    return parse(R"({"train_batch_size": 8, "optimizer": {"type": ")" + type + R"("},
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}})");
  };
  const DeepspeedConfig adam = of("AdamW"), sgd = of("SGD");
  EXPECT_EQ(adam.optimizer->beta2, 0.99);
  EXPECT_TRUE(adam.schedule->cycle_momentum);
  EXPECT_THAT(adam.notes, ElementsAre(HasSubstr("beta2 is 0.99")));
  EXPECT_FALSE(sgd.schedule->cycle_momentum);
  EXPECT_THAT(sgd.notes, ElementsAre(HasSubstr("SGD has no betas")));
}

TEST(DeepspeedConfig, UsesDeepspeedsScheduleDefaults) {
  const DeepspeedSchedule warm_up = *parse(scheduler("WarmupLR", "")).schedule;
  EXPECT_EQ(warm_up.warmup_max_lr, 1e-3);
  EXPECT_EQ(warm_up.warmup_num_steps, 1000);
  EXPECT_EQ(warm_up.warmup_type, "log");
  const DeepspeedSchedule cosine =
      *parse(scheduler("WarmupCosineLR", R"("total_num_steps": 500, "cos_min_ratio": 0.1)"))
           .schedule;
  EXPECT_EQ(cosine.total_num_steps, 500);
  EXPECT_EQ(cosine.cos_min_ratio, 0.1);
  const DeepspeedSchedule cycle =
      *parse(scheduler("OneCycle",
                       R"("cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 30,
                       "cycle_second_step_size": null, "cycle_first_stair_count": 3)"))
           .schedule;
  EXPECT_EQ(cycle.cycle_second_step_size, 30) << "as long as the first half";
  EXPECT_EQ(cycle.cycle_second_stair_count, 3);
  EXPECT_TRUE(cycle.cycle_momentum);
  const DeepspeedSchedule test =
      *parse(scheduler("LRRangeTest", R"("lr_range_test_staircase": true)")).schedule;
  EXPECT_EQ(test.lr_range_test_step_size, 2000);
  EXPECT_TRUE(test.lr_range_test_staircase);
  const DeepspeedSchedule decay = *parse(R"({"train_batch_size": 8,
      "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5}}})")
                                       .schedule;
  EXPECT_EQ(decay.warmup_max_lr, 1e-3) << "for any rate of the optimizer";
  for (const auto& json : {scheduler("WarmupLR", ""), scheduler("LRRangeTest", ""),
                           scheduler("WarmupCosineLR", R"("total_num_steps": 9)"),
                           scheduler("OneCycle", R"("cycle_min_lr": 0, "cycle_max_lr": 1)")})
    EXPECT_THAT(to_text(parse(json)), Not(HasSubstr("schedule    none")));
}

// The page shows the example file and its resolved form, and documents every key. The message for
// an unknown key lists the known ones.
TEST(DeepspeedConfig, MatchesItsDocumentation) {
  const std::string page = read_file(TRESTLE_SOURCE_DIR "/docs/deepspeed.md");
  EXPECT_THAT(page, AllOf(HasSubstr(stage_2), HasSubstr(to_text(parse(stage_2, 4)))));
  const std::string unknown = R"("qqqqqqqqqqqq": 1)";
  const std::string sections[] = {
      with(unknown),
      zero(unknown),
      zero(R"("offload_optimizer": {)" + unknown + "}"),
      with(R"("fp16": {)" + unknown + "}"),
      with(R"("bf16": {)" + unknown + "}"),
      with(R"("activation_checkpointing": {)" + unknown + "}"),
      with(R"("checkpoint": {)" + unknown + "}"),
      optimizer("AdamW", unknown),
      optimizer("SGD", unknown),
      optimizer("RMSprop", unknown),
      scheduler("WarmupDecayLR", R"("total_num_steps": 1, )" + unknown),
      scheduler("WarmupCosineLR", R"("total_num_steps": 1, )" + unknown),
      scheduler("OneCycle", R"("cycle_min_lr": 0, "cycle_max_lr": 1, )" + unknown),
      scheduler("LRRangeTest", unknown)};
  for (const std::string& json : sections) {
    const std::string message = config_error(json), before = "; known are ";
    ASSERT_THAT(message, HasSubstr(before));
    for (const std::string& key : split(message.substr(message.find(before) + before.size()), ','))
      EXPECT_THAT(page, HasSubstr("`" + trim(key) + "`")) << "of " << json;
  }
}

TEST(Fuzz, DeepspeedConfigs) {
  const auto result = fuzz::run(
      {stage_2, everything, optimizer("Adam", R"("lr": 0.1)"), with(R"("zero_optimization": true)"),
       scheduler("OneCycle", R"("cycle_min_lr": 0, "cycle_max_lr": 1)")},
      [](std::string_view bytes) {
        const DeepspeedConfig config = parse_deepspeed_config(bytes, "fuzz.json", 2);
        EXPECT_EQ(config.train_batch, config.micro_batch * config.accumulate * 2);
        EXPECT_THAT(to_text(config), HasSubstr("clipping"));
      },
      {.iterations = 4000});
  EXPECT_GT(result.accepted, 50);
  EXPECT_GT(result.refused, 500);
}

}  // namespace
}  // namespace trestle::deepspeed
