#include "trestle/sharding/hooks/powersgd.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/device_of_rank.h"
#include "tests/support/golden.h"
#include "tests/support/message_of.h"
#include "tests/support/run_ranks.h"
#include "trestle/sharding/sharded_parameters.h"

// PowerSGD compared with PyTorch's hook (tools/golden/make_powersgd_goldens.py) and with its
// mathematics.
namespace trestle::sharding {
namespace {

using support::message_of;
using ::testing::HasSubstr;
using testing::run_ranks;
using Shapes = std::vector<std::vector<std::int64_t>>;

struct Gradients {
  at::Tensor buffer;
  std::vector<at::Tensor> parts;
};

// Copies gradients into one flat buffer.
Gradients in_one_piece(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& value : values) rows.push_back(value.reshape(-1));
  Gradients result = {.buffer = at::cat(rows), .parts = {}};
  std::int64_t begin = 0;
  for (const at::Tensor& value : values) {
    result.parts.push_back(result.buffer.narrow(0, begin, value.numel()).view(value.sizes()));
    begin += value.numel();
  }
  return result;
}

PowerSgdOptions options_of(const nlohmann::json& given) {
  return {.approximation_rank = given["matrix_approximation_rank"],
          .start_iteration = given["start_powerSGD_iter"],
          .min_compression_rate = given.value("min_compression_rate", 2.0),
          .error_feedback = given.value("use_error_feedback", true),
          .warm_start = given.value("warm_start", true),
          .orthogonalization_epsilon = given.value("orthogonalization_epsilon", 0.0),
          .seed = given.value("random_seed", 0U)};
}

TEST(PowerSgd, MatchesPyTorch) {
  const auto golden = nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/sharding/powersgd.json"));
  const auto buckets = golden["buckets"].get<std::vector<Shapes>>();
  for (const auto& [name, expected] : golden["cases"].items()) {
    run_ranks(2, [&, name = name, &expected = expected](World& world) {
      PowerSgd powersgd(world.group(), options_of(expected["options"]));
      const auto& steps = expected["averages"];
      for (std::size_t step = 0; step < steps.size(); ++step) {
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          std::vector<at::Tensor> values;
          for (std::size_t i = 0; i < buckets[b].size(); ++i)
            values.push_back(golden::formula_doubles(
                buckets[b][i],
                1000 * (step + 1) + 100 * b + 10 * static_cast<std::size_t>(world.rank()) + i));
          const Gradients gradients = in_one_piece(values);
          powersgd.average(static_cast<int>(b), gradients.buffer, gradients.parts);
          const auto wanted = torch::tensor(steps[step][b].get<std::vector<double>>(), at::kDouble);
          EXPECT_TRUE(at::allclose(wanted, gradients.buffer, 1e-8, 1e-9))
              << name << ", step " << step << ", bucket " << b;
        }
        powersgd.end_step();
      }
      EXPECT_EQ(powersgd.numbers_before(), expected["before"].get<std::int64_t>());
      EXPECT_EQ(powersgd.numbers_sent(), expected["after"].get<std::int64_t>());
    });
  }
}

// The same numbers as the hook of a Sharded, whose gradients are the golden values.
TEST(PowerSgd, MatchesPyTorchAsHookOfSharded) {
  const auto golden = nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/sharding/powersgd.json"));
  const auto buckets = golden["buckets"].get<std::vector<Shapes>>();
  NamedTensors shapes;  // in the order of buckets
  for (std::size_t b = 0; b < buckets.size(); ++b)
    for (const auto& shape : buckets[b])
      shapes.emplace_back(std::to_string(b) + "_" + std::to_string(shapes.size()),
                          at::zeros(shape, at::kDouble));
  Bytes first = 0;
  for (const auto& [name, tensor] : shapes)
    if (name[0] == '0') first += static_cast<Bytes>(tensor.nbytes());
  for (const auto& [name, expected] : golden["cases"].items()) {
    run_ranks(2, [&, name = name, &expected = expected](World& world) {
      NamedTensors parameters;
      for (auto shape = shapes.rbegin(); shape != shapes.rend(); ++shape)
        parameters.emplace_back(shape->first, shape->second.clone().requires_grad_());
      const ShardOptions options = {
          .buckets = {.first = first, .hook = powersgd_hook(options_of(expected["options"]))}};
      const DeviceMesh mesh(world, {{"replicate", 2}});
      ShardedParameters stage(parameters, {}, rank_groups(mesh, options), options);
      const auto& steps = expected["averages"];
      for (std::size_t step = 0; step < steps.size(); ++step) {
        at::Tensor loss = at::zeros({}, at::kDouble);
        std::size_t number = 0;
        for (std::size_t b = 0; b < buckets.size(); ++b)
          for (std::size_t i = 0; i < buckets[b].size(); ++i)
            // Half, because ShardedParameters sums over ranks.
            loss = loss + (parameters[parameters.size() - 1 - number++].second *
                           golden::formula_doubles(
                               buckets[b][i], 1000 * (step + 1) + 100 * b +
                                                  10 * static_cast<std::size_t>(world.rank()) + i) /
                           2)
                              .sum();
        stage.unshard();
        stage.reduce_next_backward();
        loss.backward();
        stage.finish_reduction();
        stage.reshard();
        number = 0;
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          std::vector<at::Tensor> got;
          for (std::size_t i = 0; i < buckets[b].size(); ++i)
            got.push_back(parameters[parameters.size() - 1 - number++].second.grad().reshape(-1));
          const auto wanted = torch::tensor(steps[step][b].get<std::vector<double>>(), at::kDouble);
          EXPECT_TRUE(at::allclose(wanted, at::cat(got), 1e-8, 1e-9))
              << name << ", step " << step << ", bucket " << b;
        }
        stage.zero_grad();
      }
    });
  }
}

at::Tensor of_rank_one(std::int64_t rows, std::int64_t columns) {
  return golden::formula_doubles({rows, 1}, 1).mm(golden::formula_doubles({1, columns}, 2));
}

TEST(PowerSgd, IsExactForAveragesOfLowRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      const at::Tensor common = of_rank_one(9, 12);
      const at::Device device =
          world.size() == 3 ? testing::device_of_rank(world.rank()) : at::Device(at::kCPU);
      // Each rank has a multiple, so the average has rank one too. Four dimensions count as a
      // matrix.
      const auto mine = in_one_piece({(common * (world.rank() + 1)).view({9, 3, 2, 2}).to(device),
                                      torch::ones({5}, at::kDouble).mul(world.rank()).to(device)});
      PowerSgd powersgd(world.group(), {.start_iteration = 0});
      powersgd.average(0, mine.buffer, mine.parts);
      const double mean = (world.size() + 1) / 2.0;
      EXPECT_TRUE(at::allclose(mine.parts[0].cpu().view({9, 12}), common * mean, 1e-9, 1e-9));
      EXPECT_TRUE(at::allclose(mine.parts[1].cpu(), torch::full({5}, mean - 1, at::kDouble)));
    });
  }
}

// Later steps make up for the error of each step: the sum of the applied updates approaches that of
// the averages.
TEST(PowerSgd, ErrorFeedbackRecoversCompressionError) {
  run_ranks(2, [](World& world) {
    const at::Tensor mine =
        golden::formula_doubles({10, 10}, static_cast<std::uint64_t>(world.rank()));
    at::Tensor average = mine.clone();
    world.group().all_reduce(average).wait();
    average.div_(2);
    PowerSgd powersgd(world.group(), {.start_iteration = 0});
    at::Tensor applied = torch::zeros({10, 10}, at::kDouble);
    constexpr int steps = 200;
    double first = 0;
    for (int step = 0; step < steps; ++step) {
      const Gradients gradients = in_one_piece({mine});
      powersgd.average(0, gradients.buffer, gradients.parts);
      powersgd.end_step();
      applied += gradients.parts[0];
      const double error = (applied / (step + 1) - average).norm().item<double>();
      if (step == 0) first = error;
      if (step == steps - 1) {
        EXPECT_LT(error, 0.1 * first);
      }
    }
    EXPECT_EQ(powersgd.numbers_sent() * 5, powersgd.numbers_before());
  });
}

TEST(PowerSgd, KeepsZerosAndMemoryFormats) {
  run_ranks(2, [](World& world) {
    PowerSgd powersgd(world.group(), {.approximation_rank = 2, .start_iteration = 0});
    const Gradients zeros = in_one_piece({torch::zeros({8, 12})});
    for (int step = 0; step < 3; ++step) {
      powersgd.average(0, zeros.buffer, zeros.parts);
      EXPECT_TRUE(zeros.buffer.eq(0).all().item<bool>());
    }
    // A channels_last tensor and a transposed matrix, both of rank one.
    const at::Tensor a = of_rank_one(8, 12).view({8, 3, 2, 2}), b = of_rank_one(7, 9);
    const at::Tensor buffer = torch::empty({96 + 63}, at::kDouble);
    const at::Tensor last = buffer.as_strided({8, 3, 2, 2}, {12, 1, 6, 3});
    const at::Tensor transposed = buffer.as_strided({7, 9}, {1, 7}, 96);
    last.copy_(a);
    transposed.copy_(b);
    PowerSgd other(world.group(), {.start_iteration = 0});
    other.average(0, buffer, {last, transposed});
    EXPECT_TRUE(at::allclose(last, a, 1e-9, 1e-9));
    EXPECT_TRUE(at::allclose(transposed, b, 1e-9, 1e-9));
  });
}

TEST(PowerSgd, RefusesInvalidOptionsAndBuckets) {
  run_ranks(2, [](World& world) {
    EXPECT_THAT(message_of<std::exception>(
                    [&] { PowerSgd powersgd(world.group(), {.approximation_rank = 0}); }),
                HasSubstr("approximation_rank 0"));
    PowerSgd differs(world.group(), {.seed = static_cast<std::uint32_t>(world.rank())});
    const Gradients gradients = in_one_piece({torch::ones({8, 8})});
    EXPECT_THAT(
        message_of<std::exception>([&] { differs.average(0, gradients.buffer, gradients.parts); }),
        HasSubstr("the ranks' options of PowerSGD differ: rank 0 has"));
    PowerSgd powersgd(world.group(), {.start_iteration = 0});
    EXPECT_THAT(message_of<std::exception>(
                    [&] { powersgd.average(0, gradients.buffer, {torch::ones({64})}); }),
                HasSubstr("not a view of its bucket"));
    EXPECT_THAT(message_of<std::exception>(
                    [&] { powersgd.average(0, gradients.buffer, {gradients.parts[0][0]}); }),
                HasSubstr("a bucket of 64 elements has gradients of 8"));
    powersgd.average(0, gradients.buffer, gradients.parts);
    const Gradients larger = in_one_piece({torch::ones({9, 9})});
    EXPECT_THAT(
        message_of<std::exception>([&] { powersgd.average(0, larger.buffer, larger.parts); }),
        HasSubstr("bucket 0 has 81 elements, but had 64"));
  });
}

}  // namespace
}  // namespace trestle::sharding
