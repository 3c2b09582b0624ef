// Running statistics of batch norms compared with torchgpipe 0.0.7's for the same batches: with its
// deferred batch norm, and with plain batch norms, which its recomputation updates again.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "trestle/nn/batch_norm_statistics.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

using nn::BatchNormStatistics;

// Double precision: only the order of sums differs.
constexpr double statistics_tolerance = 1e-12;

constexpr std::int64_t pixels_of_norm1 = 4 * 5;  // of one sample, after one 3 x 3 convolution
constexpr std::int64_t pixels_of_norm2 = 2 * 3;  // after two

nn::Layers make_net(const nlohmann::json& content, std::optional<double> momentum) {
  const std::int64_t channels = content["channels"];
  const auto norm = [&] {
    return torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(channels).momentum(momentum));
  };
  nn::Layers net;
  net.add("conv1", torch::nn::Conv2d(2, channels, 3));
  net.add("norm1", norm());
  net.add("relu", torch::nn::ReLU());
  net.add("conv2", torch::nn::Conv2d(channels, channels, 3));
  net.add("norm2", norm());
  net.add("mean", [](at::Tensor x) { return x.mean({2, 3}); });
  net.add("out", torch::nn::Linear(channels, content["classes"].get<std::int64_t>()));
  oracle::in_double(net);
  golden::set_formula_weights(net.named_parameters());
  return net;
}

at::Tensor golden_images(std::int64_t count, std::uint64_t step) {
  return golden::formula_doubles({count, 2, 6, 7}, 1000 + step) * 3 + 1;
}

void expect_numbers(const at::Tensor& actual, const std::vector<double>& expected,
                    const std::string& what) {
  const at::Tensor flat = actual.detach().cpu().to(at::kDouble).reshape(-1).contiguous();
  ASSERT_EQ(flat.numel(), static_cast<std::int64_t>(expected.size())) << what;
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(flat.data_ptr<double>()[i], expected[i], statistics_tolerance)
        << what << "[" << i << "]";
}

// torchgpipe uses the mini-batch's biased variance; torch and trestle use the unbiased one.
// Extracts each step's variance from torchgpipe's running variance and multiplies it by n / (n -
// 1).
class UnbiasedVariance {
 public:
  std::vector<double> next(const std::string& name, const std::vector<double>& biased,
                           std::optional<double> momentum, std::int64_t step, double n) {
    const double m = momentum.value_or(1.0 / static_cast<double>(step + 1));
    auto& [before, ours] = running_[name];
    before.resize(biased.size(), 1);
    ours.resize(biased.size(), 1);
    for (std::size_t i = 0; i < biased.size(); ++i) {
      const double of_step = (biased[i] - (1 - m) * before[i]) / m;
      ours[i] = (1 - m) * ours[i] + m * of_step * n / (n - 1);
    }
    before = biased;
    return ours;
  }

 private:
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> running_;
};

PipelineOptions options_of(const nlohmann::json& run, BatchNormStatistics statistics) {
  const auto balance = run["balance"].get<std::vector<int>>();
  return {.devices = virtual_devices(static_cast<int>(balance.size())),
          .balance = balance,
          .micro_batches = run["chunks"].get<int>(),
          .recompute = schedule::parse_recompute(run["checkpoint"].get<std::string>()),
          .numerics = {.batch_norm = statistics}};
}

std::optional<double> momentum_of(const nlohmann::json& run) {
  if (run["momentum"].is_null()) return std::nullopt;
  return run["momentum"].get<double>();
}

// Trains with the caller's backward, or with step().
enum class By { Backward, Step };

void expect_run(const nlohmann::json& content, const nlohmann::json& run, By by) {
  const bool deferred = run["deferred"];
  const std::optional<double> momentum = momentum_of(run);
  const nn::Layers net = make_net(content, momentum);
  Pipeline pipeline(net, options_of(run, deferred ? BatchNormStatistics::WholeBatch
                                                  : BatchNormStatistics::EachRun));
  torch::optim::SGD sgd(pipeline.parameters(), content["rate"].get<double>());
  UnbiasedVariance unbiased;
  for (std::size_t step = 0; step < run["steps"].size(); ++step) {
    const auto& expected = run["steps"][step];
    const std::int64_t count = expected["count"];
    const at::Tensor target =
        golden::formula_classes({count}, content["classes"].get<std::int64_t>(), 2000 + step);
    pipeline.zero_grad();
    at::Tensor output;
    if (by == By::Backward) {
      output = pipeline.forward(golden_images(count, step));
      torch::nn::functional::cross_entropy(output, target.to(output.device())).backward();
    } else {
      output = pipeline
                   .step(golden_images(count, step), target, nn::cross_entropy(),
                         {.output = StepOptions::Output::Keep})
                   .output;
    }
    sgd.step();
    const std::int64_t stride = content["output_stride"];
    expect_numbers(output.detach().cpu().reshape(-1).slice(0, 0, std::nullopt, stride),
                   expected["output"], "output");
    for (const auto& [name, buffer] : net.named_buffers()) {
      auto numbers = expected["buffers"].at(name).get<std::vector<double>>();
      if (deferred && name.ends_with("running_var")) {
        const auto pixels = name.starts_with("norm1") ? pixels_of_norm1 : pixels_of_norm2;
        numbers = unbiased.next(name, numbers, momentum, static_cast<std::int64_t>(step),
                                static_cast<double>(count * pixels));
      }
      expect_numbers(buffer, numbers, name);
    }
  }
}

class TorchGpipeBatchNorm : public ::testing::TestWithParam<By> {};

TEST_P(TorchGpipeBatchNorm, MatchesStatisticsOfSeveralStepsInEveryMode) {
  const auto content = golden::load("batch_norm");
  int deferred = 0;
  for (const auto& run : content["runs"]) {
    SCOPED_TRACE(run["checkpoint"].dump() + ", " + run["chunks"].dump() + " chunks, momentum " +
                 run["momentum"].dump() + (run["deferred"] ? ", deferred" : ""));
    expect_run(content, run, GetParam());
    deferred += run["deferred"] ? 1 : 0;
  }
  EXPECT_EQ(deferred, 12);  // 2 momenta, 1 and 4 chunks, 3 modes
  EXPECT_EQ(content["runs"].size(), 24u);
}

INSTANTIATE_TEST_SUITE_P(Ways, TorchGpipeBatchNorm, ::testing::Values(By::Backward, By::Step),
                         [](const auto& info) {
                           return info.param == By::Step ? "Step" : "Backward";
                         });

// torchgpipe splits 9 samples into three micro-batches where four were requested, and waits for a
// fourth from the next batch. Trestle splits them into 3, 2, 2 and 2, and counts 3 samples at once.
TEST(TorchGpipeShortBatch, CountsAtOnce) {
  const auto content = golden::load("batch_norm");
  const auto& run = content["short"];
  const auto& torchgpipe = run["steps"][0]["buffers"]["norm1.num_batches_tracked"];
  EXPECT_EQ(torchgpipe.get<std::vector<double>>(), std::vector<double>{0});
  for (const std::int64_t count : {9, 3}) {
    const nn::Layers net = make_net(content, momentum_of(run));
    const nn::Layers plain = make_net(content, momentum_of(run));
    Pipeline pipeline(net, options_of(run, BatchNormStatistics::WholeBatch));
    pipeline.step(golden_images(count, 0), at::zeros({count}, at::kLong), nn::cross_entropy());
    plain.forward(golden_images(count, 0));
    for (std::size_t i = 0; i < 3; ++i) {  // of norm1: norm2's input was normalized per micro-batch
      const auto [name, buffer] = plain.named_buffers()[i];
      const at::Tensor ours = net.named_buffers()[i].second.cpu();
      EXPECT_LE((ours - buffer).abs().max().item<double>(), statistics_tolerance)
          << name << " of " << count;
    }
  }
}

}  // namespace
}  // namespace trestle
