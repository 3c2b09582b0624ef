// State that an engine carries from step to step: overflows, micro-batches, checkpoints.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>

#include "tests/deepspeed/nets.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/deepspeed/options.h"

namespace trestle::deepspeed {
namespace {

using ::testing::HasSubstr;

// Behaviour 37: all ranks skip an overflow, after the hysteresis, without advancing the schedule.
TEST(DeepspeedEngine, SkipsOverflowsWithoutAdvancingSchedule) {
  for (int number = 0; number < 4; ++number)
    spawn(2, [&](World& world) {
      const auto net = single_net();
      Net engine(
          net, world,
          config(text(stage(number), momentum,
                      R"("fp16": {"enabled": true, "initial_scale_power": 40, "hysteresis": 2},
                         "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.05,
                            "warmup_num_steps": 10, "warmup_type": "linear"}},
                         "train_batch_size": )",
                      batch),
                 2),
          {});
      const NamedTensors before = engine.sharded().state();
      train_batch(engine, 0);
      EXPECT_FALSE(engine.was_step_applied());
      EXPECT_FALSE(engine.get_global_grad_norm());
      EXPECT_EQ(engine.loss_scale(), std::ldexp(1.0, 40)) << "hysteresis";
      train_batch(engine, 0);
      EXPECT_EQ(engine.loss_scale(), std::ldexp(1.0, 39));
      EXPECT_EQ(engine.skipped_steps(), 2);
      EXPECT_EQ(engine.get_lr(), std::vector<double>{0});
      EXPECT_EQ(difference(Weights(before.begin(), before.end()), engine.sharded().state()), 0);
      while (engine.skipped_steps() == engine.global_steps()) train_batch(engine, 0);
      train_batch(engine, 0);
      EXPECT_EQ(engine.global_steps() - engine.skipped_steps(), 2);
      const auto rate = *engine.config().schedule;
      EXPECT_EQ(engine.get_lr(), std::vector<double>{DeepspeedRate(0.05, rate).at(2)});
      EXPECT_GT(engine.get_lr()[0], 0);
    });
}

// Reference 1.2: from stage 1 on this is an error; at stage 0 the scale stays.
TEST(DeepspeedEngine, RefusesOverflowAtLowestScaleFromStage1On) {
  for (int number = 0; number < 4; ++number)
    spawn(2, [&](World& world) {
      const auto net = single_net();
      Net engine(
          net, world,
          config(text(stage(number), momentum,
                      R"("fp16": {"enabled": true, "initial_scale_power": 40, "hysteresis": 1,
                                "min_loss_scale": 549755813888}, "train_batch_size": )",
                      batch),
                 2),
          {});
      train_batch(engine, 0);
      EXPECT_EQ(engine.loss_scale(), std::ldexp(1.0, 39));
      std::string message = "none";
      try {
        train_batch(engine, 0);
      } catch (const StateError& error) {
        message = error.what();
      }
      EXPECT_EQ(engine.skipped_steps(), 2);
      EXPECT_EQ(engine.loss_scale(), std::ldexp(1.0, 39));
      EXPECT_THAT(message, HasSubstr(number == 0 ? "none" : "in step 2 of ds_config.json"));
    });
}

// Behaviour 41.
TEST(DeepspeedEngine, AllowsNoSyncAtStages0And1Only) {
  for (int number = 0; number < 4; ++number)
    spawn(2, [&](World& world) {
      Net engine(make_plain_net(), world,
                 config(text(stage(number), adamw, R"("gradient_accumulation_steps": 2, )",
                             "\"train_batch_size\": ", batch),
                        2),
                 {});
      EXPECT_THAT(message_of<StateError>([&] { engine.step(); }),
                  HasSubstr("without a backward()"));
      if (number >= 2) {
        EXPECT_THAT(message_of<UsageError>([&] { engine.no_sync(); }),
                    HasSubstr(text("no_sync() at stage ", number)));
        return;
      }
      const auto backward = [&] {
        engine.backward(F::cross_entropy(engine(images(0)), targets(0)));
      };
      {
        const auto no_sync = engine.no_sync();
        EXPECT_THAT(message_of<StateError>([&] { engine.no_sync(); }), HasSubstr("another one"));
        backward();
        EXPECT_THAT(message_of<StateError>([&] { engine.step(); }), HasSubstr("inside no_sync"));
      }
      engine.step();
      EXPECT_TRUE(engine.is_gradient_accumulation_boundary());
      {
        const auto no_sync = engine.no_sync();
        backward();
      }
      EXPECT_THAT(message_of<StateError>([&] { engine.step(); }), HasSubstr("this rank's alone"));
      EXPECT_EQ(engine.global_steps(), 0);
    });
}

// Behaviour 40: other stages and numbers of ranks resume, within a batch too, with scale, schedule
// and steps. Tests of sharding/save.h cover a checkpoint's content.
TEST(DeepspeedEngine, ResumesAtAnyStage) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / text("trestle_deepspeed_", ::getpid());
  const auto keys = [](int number, int accumulate) {
    return text(stage(number), adamw,
                R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.05,
                   "warmup_num_steps": 4, "warmup_type": "linear"}},
                   "fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 2},
                   "communication_data_type": "fp32", "gradient_accumulation_steps": )",
                accumulate, ", \"train_batch_size\": ", batch);
  };
  const auto run = [&](int ranks, int number, int accumulate, const auto& body) {
    return spawn(ranks,
                 [&](World& world) {
                   Net engine(single_net(), world, config(keys(number, accumulate), ranks), {});
                   body(engine);
                   const NamedTensors state = engine.sharded().state();
                   return Weights(state.begin(), state.end());
                 },
                 {.threads = 1})[0];
  };
  run(2, 1, 1, [&](Net& engine) {
    EXPECT_FALSE(engine.load_checkpoint(folder)) << "no checkpoint exists";
    for (int step = 0; step < 3; ++step) train_batch(engine, step);
    engine.save_checkpoint(folder, "", {{"epoch", 7}});
  });
  const auto go_on = [&](Net& engine) {
    const auto loaded = engine.load_checkpoint(folder);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->folder, folder / "global_step3");
    EXPECT_EQ(loaded->client_state, (std::map<std::string, double>{{"epoch", 7}}));
    EXPECT_EQ(engine.global_steps(), 3);
    EXPECT_EQ(engine.loss_scale(), 2048);
    EXPECT_EQ(engine.get_lr()[0], DeepspeedRate(0.05, *engine.config().schedule).at(3));
    for (int step = 3; step < 5; ++step) train_batch(engine, step);
  };
  const Weights whole = run(2, 2, 1, [&](Net& engine) {
    for (int step = 0; step < 5; ++step) train_batch(engine, step);
  });
  EXPECT_EQ(difference(whole,
                       [&] {
                         const Weights again = run(2, 2, 1, go_on);
                         return NamedTensors(again.begin(), again.end());
                       }()),
            0);
  for (const int ranks : {1, 3}) {
    const Weights other = run(ranks, ranks == 1 ? 0 : 3, 1, go_on);
    EXPECT_LT(difference(whole, NamedTensors(other.begin(), other.end())), 0.01) << ranks;
  }
  // Within a batch of two micro-batches per rank.
  for (const int number : {1, 2})
    run(2, number, 2, [&](Net& engine) {
      const std::int64_t micro = engine.train_micro_batch_size_per_gpu();
      engine.backward(F::cross_entropy(engine(images(0).narrow(0, 0, micro)).to(at::kFloat),
                                       targets(0).narrow(0, 0, micro)));
      engine.step();
      if (number == 1) {
        EXPECT_THROW(engine.save_checkpoint(folder, "inside"), StateError);
        return;
      }
      engine.save_checkpoint(folder, "inside");
      engine.load_checkpoint(folder, "inside");
      EXPECT_EQ(engine.micro_steps(), 1);
      EXPECT_TRUE(engine.is_gradient_accumulation_boundary());
    });
  run(2, 2, 1, [&](Net& engine) {
    EXPECT_THROW(engine.load_checkpoint(folder), UsageError)
        << "saved within a step of two micro-batches";
    EXPECT_THROW(engine.save_checkpoint(folder, "a/b"), UsageError);
    EXPECT_THROW(engine.save_checkpoint(folder, text("rank", engine.global_rank())), UsageError);
    EXPECT_THROW(engine.load_checkpoint(folder, "no_such"), FileError);
    EXPECT_THROW(engine.save_checkpoint(folder / "latest" / "below"), FileError);
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trestle::deepspeed
