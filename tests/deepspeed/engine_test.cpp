// The engine with DeepSpeed's calls, compared with plain libtorch.
#include "trestle/deepspeed/deepspeed.h"

#include <gmock/gmock.h>

#include "tests/deepspeed/nets.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/deepspeed/options.h"
#include "trestle/optim/factory.h"

namespace trestle::deepspeed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Trains without trestle.
Weights plain(const std::string& optimizer, double clip, int steps = 3) {
  const auto net = make_plain_net();
  std::unique_ptr<torch::optim::Optimizer> own;
  if (optimizer == adamw)
    own = std::make_unique<torch::optim::AdamW>(net->parameters(),
                                                torch::optim::AdamWOptions(0.05).weight_decay(0.1));
  else
    own = std::make_unique<torch::optim::SGD>(net->parameters(),
                                              torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    own->zero_grad();
    F::cross_entropy(net->forward(images(step)), targets(step)).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    own->step();
  }
  return testing::weights_of(*net);
}

// Behaviours 31 and 41: every stage, with and without clipping, momentum and accumulation.
TEST(DeepspeedEngine, TrainsToPlainModelsWeightsAtEveryStage) {
  for (const char* const optimizer : {adamw, momentum})
    for (const double clip : {0.0, 0.5}) {
      const Weights expected = plain(optimizer, clip);
      for (int number = 0; number < 4; ++number)
        for (const int accumulate : {1, 3})
          spawn(2, [&](World& world) {
            Net engine(make_plain_net(), world,
                       config(text(stage(number), optimizer, "\"gradient_clipping\": ", clip,
                                   ", \"gradient_accumulation_steps\": ", accumulate,
                                   ", \"train_batch_size\": ", batch),
                              2),
                       {});
            for (int step = 0; step < 3; ++step) {
              train_batch(engine, step);
              EXPECT_EQ(engine.get_global_grad_norm().has_value(), clip > 0);
            }
            EXPECT_EQ(engine.global_steps(), 3);
            EXPECT_EQ(engine.micro_steps(), 3 * accumulate);
            EXPECT_LT(difference(expected, engine.sharded().state()), 1e-12)
                << "stage " << number << ", " << accumulate << " micro-batches";
          });
    }
}

TEST(DeepspeedEngine, MicsIsStage3OverReplicas) {
  const Weights expected = plain(adamw, 0);
  spawn(4, [&](World& world) {
    Net engine(make_plain_net(), world,
               config(text("\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}, ", adamw,
                           "\"train_batch_size\": ", batch),
                      4),
               {});
    EXPECT_EQ(engine.sharded().shard_ranks().size(), 2);
    for (int step = 0; step < 3; ++step) train_batch(engine, step);
    EXPECT_LT(difference(expected, engine.sharded().state()), 1e-12);
  });
}

// In 16 bits: every stage has master weights, so all stages agree and come near to fp32's weights.
TEST(DeepspeedEngine, TrainsIn16BitsAtEveryStage) {
  for (const char* const precision : {"bf16", "fp16"}) {
    std::vector<Weights> each;
    for (int number = 0; number < 4; ++number) {
      const auto states = spawn(
          2,
          [&](World& world) {
            const auto net = single_net();
            Net engine(net, world,
                       config(text(stage(number), momentum, "\"", precision,
                                   "\": {\"enabled\": true}, \"gradient_accumulation_steps\": 2, "
                                   "\"communication_data_type\": \"fp32\", \"train_batch_size\": ",
                                   batch),
                              2),
                       {});
            EXPECT_EQ(engine.fp16_enabled(), std::string(precision) == "fp16");
            EXPECT_EQ(engine.bfloat16_enabled(), std::string(precision) == "bf16");
            EXPECT_EQ(engine.loss_scale(), engine.fp16_enabled() ? 65536 : 1);
            for (int step = 0; step < 3; ++step) train_batch(engine, step);
            EXPECT_EQ(engine.skipped_steps(), 0);
            const NamedTensors state = engine.sharded().state();
            return Weights(state.begin(), state.end());
          },
          {.threads = 1});
      for (const auto& [name, tensor] : states[0]) {
        EXPECT_EQ(tensor.scalar_type(), at::kFloat);
        EXPECT_TRUE(tensor.equal(states[1].at(name)));
      }
      each.push_back(states[0]);
    }
    const Weights expected = plain(momentum, 0);
    for (int number = 0; number < 4; ++number) {
      const NamedTensors got(each[number].begin(), each[number].end());
      EXPECT_LT(difference(expected, got), 0.02) << precision << " stage " << number;
      // Stages 0 and 1 accumulate micro-batches before the reduction, stages 2 and 3 after it.
      EXPECT_LT(difference(each[number < 2 ? 0 : 2], got), 2e-7) << precision << " " << number;
    }
  }
}

// At stage 3 each layer of nn::Layers is a unit. A layer unused by the loss is skipped or refused.
TEST(DeepspeedEngine, SupportsLayersAndUnusedParameters) {
  const auto layers = [] {
    nn::Layers net(nn::Seed{4});
    net.add("flat", torch::nn::Flatten());
    const auto linear = [](int in, int out) {
      return [=] {
        torch::nn::Linear made(in, out);
        made->to(at::kDouble);
        return made;
      };
    };
    net.add("hidden", linear(48, 7)).keep_output("hidden");
    net.add("unused", linear(7, 3)).pass_on({});
    net.add("out", linear(7, 5)).take("hidden");
    return net;
  };
  const nn::Layers plain = layers();
  torch::optim::AdamW optimizer(plain.parameters(),
                                torch::optim::AdamWOptions(0.05).weight_decay(0.1));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    F::cross_entropy(plain.forward(images(step)), targets(step)).backward();
    optimizer.step();
  }
  const NamedTensors trained = plain.named_parameters();
  for (int number = 0; number < 4; ++number)
    for (const bool ignore : {true, false})
      spawn(2, [&](World& world) {
        const std::string size = text("\"train_batch_size\": ", batch);
        const DeepspeedConfig read =
            config(text("\"zero_optimization\": {\"stage\": ", number,
                        ", \"ignore_unused_parameters\": ", ignore ? "true" : "false", "}, ", adamw,
                        "\"dataloader_drop_last\": true, ", size),
                   2);
        Engine engine(layers(), world, read, {});
        EXPECT_THAT(engine.description(), HasSubstr("dataloader_drop_last is the program's"));
        const auto backward = [&](int step) {
          const at::Tensor y = engine(images(step).narrow(0, 6 * world.rank(), 6));
          engine.backward(F::cross_entropy(y, targets(step).narrow(0, 6 * world.rank(), 6)));
        };
        if (!ignore) {
          const std::string message = message_of<std::exception>([&] { backward(0); });
          EXPECT_THAT(message, HasSubstr("'unused.weight'"));
          return;
        }
        for (int step = 0; step < 3; ++step) {
          backward(step);
          engine.step();
        }
        EXPECT_LT(difference(Weights(trained.begin(), trained.end()), engine.sharded().state()),
                  1e-12)
            << "stage " << number;
      });
}

// The example file of the documentation, unchanged.
TEST(DeepspeedEngine, RunsPublishedExampleFile) {
  const std::filesystem::path file = TRESTLE_SOURCE_DIR "/examples/deepspeed_zero2.json";
  spawn(2, [&](World& world) {
    const auto net = single_net();
    auto engine = initialize(net, file, world, {.optimizer = [](const NamedTensors& named) {
                               std::vector<at::Tensor> parameters;
                               for (const auto& one : named) parameters.push_back(one.second);
                               return std::make_unique<torch::optim::SGD>(parameters, 0.1);
                             }});
    EXPECT_EQ(engine.train_batch_size(), 64);
    EXPECT_EQ(engine.train_micro_batch_size_per_gpu(), 32);
    EXPECT_EQ(engine.gradient_accumulation_steps(), 1);
    EXPECT_EQ(engine.zero_optimization_stage(), 2);
    EXPECT_EQ(engine.sharded().options().level, ShardLevel::Gradients);
    EXPECT_EQ(engine.local_rank(), world.rank());
    EXPECT_EQ(engine.get_lr(), std::vector<double>{0.1});
    EXPECT_THAT(engine.description(), HasSubstr("stage 2: gradients and the optimizer's state"));
    std::vector<double> losses;
    for (int step = 0; step < 16; ++step) {
      EXPECT_TRUE(engine.is_gradient_accumulation_boundary());
      const at::Tensor y = engine(images(0));
      EXPECT_EQ(y.scalar_type(), at::kHalf);
      const at::Tensor loss = F::cross_entropy(y, targets(0));
      engine.backward(loss);
      engine.step();
      losses.push_back(loss.item<double>());
      EXPECT_EQ(engine.get_global_grad_norm().value_or(0) > 0, engine.was_step_applied());
    }
    EXPECT_TRUE(engine.was_step_applied());
    EXPECT_LT(engine.skipped_steps(), 5) << "the first scale is too high for this net";
    EXPECT_LT(losses.back(), 0.7 * losses.front());
    engine.eval();
    EXPECT_FALSE(net->is_training());
    engine.train();
    EXPECT_TRUE(net->is_training());
  });
}

TEST(DeepspeedEngine, WarnsOfSlowPrecisionOnRankZero) {
  spawn(2, [&](World& world) {
    std::vector<std::string> warnings;
    const auto warnings_of = [&](const std::string& precision, double fp16_seconds) {
      nn::Layers net(nn::Seed{1});
      net.add("in", torch::nn::Linear(4, 4));
      warnings.clear();
      Engine(net, world, config(text(precision, adamw, "\"train_batch_size\": 4"), 2),
             {.warn = [&](const std::string& line) { warnings.push_back(line); },
              .layer_speed = [&]() -> std::optional<precision::LayerSpeed> {
                return precision::LayerSpeed{
                    .weight = "in.weight", .fp32 = 0.002, .bf16 = 0.001, .fp16 = fp16_seconds};
              }});
      return warnings;
    };
    const auto slow = warnings_of(R"("fp16": {"enabled": true}, )", 0.08);
    ASSERT_EQ(slow.size(), world.rank() == 0 ? 1u : 0u);
    if (!slow.empty()) {
      EXPECT_THAT(slow[0], HasSubstr("ds_config.json: fp16 takes 40 times as long as fp32"));
      EXPECT_THAT(slow[0], HasSubstr(R"("bf16": {"enabled": true} instead of "fp16" is faster)"));
    }
    EXPECT_THAT(warnings_of(R"("fp16": {"enabled": true}, )", 0.003), ::testing::IsEmpty());
    EXPECT_THAT(warnings_of(R"("bf16": {"enabled": true}, )", 0.08), ::testing::IsEmpty());
    EXPECT_THAT(warnings_of("", 0.08), ::testing::IsEmpty());
  });
}

TEST(DeepspeedEngine, RefusesInvalidConfigurations) {
  spawn(2, [&](World& world) {
    const auto refusal = [&](const std::string& keys, const InitializeOptions& options = {}) {
      return message_of<UsageError>(
          [&] { Net(make_plain_net(), world, config(keys, 2), options); });
    };
    const std::string size = "\"train_batch_size\": 12";
    EXPECT_THAT(refusal(size), HasSubstr("names no optimizer, and the program gives none"));
    EXPECT_THAT(refusal(text(adamw, size, world.rank() == 0 ? "" : ", \"gradient_clipping\": 1")),
                HasSubstr("rank 1 reads another configuration than rank 0"));
    const auto own = [](const NamedTensors& named) {
      return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{named[0].second}, 0.1);
    };
    EXPECT_THAT(refusal(size + R"(, "scheduler": {"type": "OneCycle",
                                   "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}})",
                        {.optimizer = own}),
                HasSubstr("OneCycle moves the momentum"));
    EXPECT_THAT(
        message_of<UsageError>([&] { Net(make_plain_net(), world, config(adamw + size, 3), {}); }),
        HasSubstr("read for 3 ranks, and there are 2"));
  });
}

// Behaviour 33: a schedule keeps the relative rates of the program's own groups.
TEST(DeepspeedEngine, SchedulesParameterGroupsOfProgram) {
  spawn(2, [&](World& world) {
    const auto own = [](const NamedTensors& named) {
      std::vector<at::Tensor> biases, others;
      for (const auto& [name, tensor] : named)
        (name.ends_with("bias") ? biases : others).push_back(tensor);
      return optim::make_grouped_optimizer(
          {{.parameters = others}, {.parameters = biases, .rate_factor = 2}},
          {.name = "adamw", .learning_rate = 0.01});
    };
    Net engine(make_plain_net(), world,
               config(stage(2) + adamw + R"("scheduler": {"type": "WarmupCosineLR", "params":
                      {"warmup_num_steps": 2, "total_num_steps": 10}}, "train_batch_size": 12)",
                      2),
               {.optimizer = own});
    EXPECT_THAT(engine.description(),
                ::testing::AllOf(HasSubstr("optimizer   the program's own"),
                                 HasSubstr("optimizer adamw of the file is not used")));
    for (int step = 0; step < 3; ++step) train_batch(engine, step);
    const double rate = DeepspeedRate(0.01, *engine.config().schedule).at(3);
    EXPECT_GT(rate, 0);
    EXPECT_THAT(engine.get_lr(), ElementsAre(rate, 2 * rate));
  });
}

TEST(DeepspeedEngine, MapsEachFieldToOption) {
  const auto dimensions = [](const std::string& keys, int ranks) {
    std::string words;
    for (const auto& one : mesh_dimensions(config(keys + "\"train_batch_size\": 8", ranks)))
      words += text(one.name, "=", one.size, " ");
    return words;
  };
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  EXPECT_EQ(dimensions(stage(0), 4), "replicate=4 ");
  EXPECT_EQ(dimensions(bf16, 4), "replicate=4 shard=1 ");
  EXPECT_EQ(dimensions(stage(2) + bf16, 4), "shard=4 ");
  EXPECT_EQ(dimensions(R"("zero_optimization": {"stage": 3, "mics_shard_size": 2}, )", 8),
            "replicate=4 shard=2 ");
  const ShardOptions options = shard_options(config(
      R"("zero_optimization": {"stage": 2, "reduce_bucket_size": 1000, "ignore_unused_parameters":
         false, "offload_optimizer": {"device": "cpu"}}, "communication_data_type": "fp32",
         "fp16": {"enabled": true}, "train_batch_size": 8)",
      1));
  EXPECT_EQ(options.buckets.size, 4000);
  EXPECT_EQ(options.buckets.first, 4000);
  EXPECT_EQ(options.unused_parameters, UnusedParameters::Refuse);
  EXPECT_TRUE(options.shards_on_cpu);
  EXPECT_EQ(options.precision.parameters, at::kHalf);
  EXPECT_EQ(options.precision.reduce, at::kFloat);
  const ShardOptions plain = shard_options(
      config(R"("zero_optimization": {"reduce_bucket_size": 9e18}, "train_batch_size": 8)", 1));
  EXPECT_EQ(plain.level, ShardLevel::None);
  EXPECT_GT(plain.buckets.size, Bytes{1} << 60);
  EXPECT_EQ(plain.unused_parameters, UnusedParameters::Find);
  EXPECT_FALSE(plain.precision.parameters || plain.precision.reduce);
  const auto fixed = scaler_options(
      config(R"("fp16": {"enabled": true, "loss_scale": 0.5}, "train_batch_size": 8)", 1));
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.initial_scale, 0.5);
  EXPECT_EQ(fixed.lowest_scale, 0);
}

}  // namespace
}  // namespace trestle::deepspeed
