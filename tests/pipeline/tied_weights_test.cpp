#include <gmock/gmock.h>

#include "tests/pipeline/support.h"
#include "tests/pipeline/tied_training.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual_device.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/timeline.h"

// Weights that layers of different stages share, in one process.
namespace trestle {
namespace {

using support::message_of;
using testing::HasSubstr;
using tied::Ties;

std::vector<std::vector<int>> cuts() { return {{6}, {3, 3}, {1, 4, 1}, {2, 2, 2}}; }

std::vector<Device> devices_for(bool are_virtual, std::size_t stages) {
  if (!are_virtual) return {cpu_device()};
  return virtual_devices(static_cast<int>(stages));
}

at::Tensor tied_weight(const Pipeline& pipeline, const std::string& layer) {
  for (const nn::Layer& one : const_cast<Pipeline&>(pipeline).model().graph().layers)
    if (one.name == layer) return one.module->named_parameters()["weight"];
  return {};
}

TEST(TiedWeights, TrainAsOneTensorInPlainTorch) {
  for (const Ties ties : {Ties::Head, Ties::Three, Ties::Two, Ties::HeadOwns})
    for (const bool adam : {true, false}) {
      const tied::Training training{.ties = ties, .adam = adam, .max_norm = 0.3};
      const auto expected = tied::train_plain(training);
      for (const auto& balance : cuts())
        for (const char* schedule : {"gpipe", "1f1b"})
          for (const Recompute recompute : {Recompute::Never, Recompute::Always})
            for (const bool are_virtual : {false, true}) {
              SCOPED_TRACE(text("ties ", static_cast<int>(ties), " adam ", adam, " stages ",
                                balance.size(), " ", schedule, " recompute ",
                                schedule::to_string(recompute), " virtual ", are_virtual));
              auto options = tied::options_of(training, balance);
              options.devices = devices_for(are_virtual, balance.size());
              options.schedule = schedule;
              options.recompute = recompute;
              Pipeline pipeline(tied::make_net(ties), options);
              EXPECT_EQ(pipeline.parameters().size(), expected.weights.size());
              tied::expect_same(expected, tied::train(pipeline, training));
            }
    }
}

// The copy gets the value of the next step at its beginning: evaluate() is such a beginning too.
TEST(TiedWeights, CopiesEqualTheOwnerBitByBitOverManySteps) {
  const tied::Training training{.ties = Ties::Three, .max_norm = 0.3};
  auto options = tied::options_of(training, {2, 2, 2});
  options.devices = virtual_devices(3);
  options.schedule = "1f1b";
  Pipeline pipeline(tied::make_net(Ties::Three), options);
  for (int step = 0; step < 20; ++step) {
    pipeline.step(tied::ids(step), tied::next_ids(step), nn::token_cross_entropy());
    pipeline.evaluate(tied::ids(step));
    const at::Tensor owner = tied_weight(pipeline, "embed");
    for (const char* layer : {"middle", "head"}) {
      const at::Tensor copy = tied_weight(pipeline, layer);
      EXPECT_FALSE(copy.is_same(owner));
      EXPECT_NE(copy.device(), owner.device());
      EXPECT_TRUE(copy.cpu().equal(owner.cpu())) << layer << " after step " << step;
      EXPECT_FALSE(copy.grad().defined());
    }
  }
}

// forward(), the caller's loss and backward, and an optimizer of pipeline.parameters().
tied::Outcome train_by_caller(Pipeline& pipeline, const tied::Training& training) {
  const auto optimizer = tied::make_optimizer(training, pipeline.parameters());
  tied::Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor scores = pipeline.forward(tied::ids(step));
    const at::Tensor loss =
        nn::token_cross_entropy().value(scores, tied::next_ids(step).to(scores.device()));
    loss.backward();
    outcome.gradients.clear();
    for (const auto& [name, tensor] : pipeline.named_parameters())
      if (tensor.grad().defined()) outcome.gradients[name] = tensor.grad().cpu().clone();
    outcome.losses.push_back(loss.item<double>());
    outcome.norms.push_back(pipeline.clip_grad_norm(training.max_norm));
    optimizer->step();
  }
  outcome.weights = tied::copy_of(pipeline.named_parameters());
  return outcome;
}

TEST(TiedWeights, FollowCallersBackwardAndOptimizer) {
  for (const Ties ties : {Ties::Head, Ties::Three, Ties::HeadOwns})
    for (const Recompute recompute : {Recompute::Never, Recompute::Always})
      for (const bool are_virtual : {false, true}) {
        const tied::Training training{.ties = ties, .max_norm = 0.3};
        const auto expected = tied::train_plain(training);
        Pipeline pipeline(tied::make_net(ties), {.devices = devices_for(are_virtual, 3),
                                                 .balance = {2, 2, 2},
                                                 .micro_batches = 3,
                                                 .recompute = recompute});
        const auto actual = train_by_caller(pipeline, training);
        tied::expect_same(expected, actual);
        EXPECT_EQ(actual.gradients.size(), expected.gradients.size());
        tied::expect_near(expected.gradients, actual.gradients, 1e-11);
      }
}

// Two graphs at once: the second forward must not change the copy that the first graph has saved.
TEST(TiedWeights, SurviveTwoForwardsBeforeOneBackward) {
  tied::PlainModel plain(Ties::Head);
  (plain.loss(tied::ids(0), tied::next_ids(0)) + plain.loss(tied::ids(1), tied::next_ids(1)))
      .backward();
  for (const bool are_virtual : {false, true}) {
    Pipeline pipeline(tied::make_net(),
                      {.devices = devices_for(are_virtual, 2), .balance = {3, 3}});
    at::Tensor sum;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor scores = pipeline.forward(tied::ids(step));
      pipeline.evaluate(tied::ids(step));
      const at::Tensor loss =
          nn::token_cross_entropy().value(scores, tied::next_ids(step).to(scores.device()));
      sum = sum.defined() ? sum + loss : loss;
    }
    sum.backward();
    for (const auto& [name, tensor] : pipeline.named_parameters())
      EXPECT_TRUE(at::allclose(tensor.grad().cpu(), plain[name].grad(), 1e-10, 1e-12)) << name;
  }
}

// As in plain torch, a weight that changes between forward and backward is an error.
TEST(TiedWeights, RefuseAChangeBetweenForwardAndBackward) {
  for (const bool are_virtual : {false, true}) {
    Pipeline pipeline(tied::make_net(),
                      {.devices = devices_for(are_virtual, 2), .balance = {3, 3}});
    const at::Tensor scores = pipeline.forward(tied::ids(0));
    {
      const at::NoGradGuard no_grad;
      pipeline.parameters()[0].mul_(2);
      pipeline.evaluate(tied::ids(0));
    }
    EXPECT_ANY_THROW(scores.sum().backward());
  }
}

TEST(TiedWeights, TakePartInAccumulation) {
  for (const bool updates : {true, false}) {
    const tied::Training training{.max_norm = 0.3};
    const auto expected = tied::train_plain(training, 9);
    auto options = tied::options_of(training, {3, 3});
    options.devices = virtual_devices(2);
    if (!updates) options.optimizer = {};
    Pipeline pipeline(tied::make_net(), options);
    const auto own = tied::make_optimizer(training, pipeline.parameters());
    for (int step = 0; step < training.steps; ++step) {
      own->zero_grad();
      const at::Tensor input = tied::ids(step, 9), target = tied::next_ids(step, 9);
      const auto first = pipeline.step(
          input.narrow(0, 0, 6), target.narrow(0, 0, 6), nn::token_cross_entropy(),
          {.gradient_scale = 2.0 / 3,
           .update = updates ? StepOptions::Update::Later : StepOptions::Update::Now});
      pipeline.step(input.narrow(0, 6, 3), target.narrow(0, 6, 3), nn::token_cross_entropy(),
                    {.gradient_scale = 1.0 / 3, .first_micro_batch = first.micro_batches});
      if (updates) continue;
      pipeline.clip_grad_norm(training.max_norm);
      own->step();
    }
    tied::expect_near(expected.weights, tied::copy_of(pipeline.named_parameters()), 1e-11);
  }
}

// The scale overflows in the second step, which changes nothing.
TEST(TiedWeights, SkipAStepThatOverflows) {
  const tied::Training training{.max_norm = 0.3};
  const auto expected = tied::train_plain(training, 8, /*skipped=*/1);
  auto options = tied::options_of(training, {2, 2, 2});
  options.devices = virtual_devices(3);
  Pipeline pipeline(tied::make_net(), options);
  precision::GradientScaler scaler({.initial_scale = 1024});
  for (int step = 0; step < training.steps; ++step) {
    nn::Loss loss = nn::token_cross_entropy();
    if (step == 1)
      loss.value = [](const at::Tensor& output, const at::Tensor&) { return output.sum() * 1e308; };
    const auto result =
        pipeline.step(tied::ids(step), tied::next_ids(step), loss, {.scaler = &scaler});
    EXPECT_EQ(result.stepped, step != 1);
  }
  EXPECT_EQ(scaler.scale(), 512);
  tied::expect_near(expected.weights, tied::copy_of(pipeline.named_parameters()), 1e-10);
}

TEST(TiedWeights, MayBeFrozen) {
  const tied::Training training{.ties = Ties::Three, .trains_table = false};
  auto options = tied::options_of(training, {2, 2, 2});
  options.devices = virtual_devices(3);
  Pipeline pipeline(tied::make_net(Ties::Three), options);
  tied::expect_same(tied::train_plain(training), tied::train(pipeline, training));
  EXPECT_FALSE(tied_weight(pipeline, "head").requires_grad());
}

// Weights that a program writes into the owner reach the copies before the next forward.
TEST(TiedWeights, FollowWeightsThatAreLoaded) {
  tied::PlainModel plain(Ties::Head);
  Pipeline pipeline(tied::make_net(), {.devices = virtual_devices(2), .balance = {3, 3}});
  for (const bool by_data : {false, true}) {
    const at::Tensor values = at::randn({tied::words, tied::width}, at::kDouble);
    for (const at::Tensor& table : {plain["embed.weight"], pipeline.parameters()[0]}) {
      const at::NoGradGuard no_grad;
      at::Tensor memory = by_data ? table.variable_data() : table;
      memory.copy_(values);
    }
    EXPECT_TRUE(at::allclose(pipeline.evaluate(tied::ids(0)).cpu(), plain.scores(tied::ids(0)),
                             1e-10, 1e-12));
  }
}

// In bfloat16 a step still sums the gradients once: the copy and the owner get equal shares of it.
TEST(TiedWeights, TrainWithAutocast) {
  const auto weights = [](const std::vector<int>& balance) {
    const tied::Training training{.max_norm = 0.3};
    auto net = tied::make_net();
    for (const nn::Layer& layer : net.graph().layers)
      if (layer.module) layer.module->to(torch::kFloat);
    auto options = tied::options_of(training, balance);
    options.devices = virtual_devices(static_cast<int>(balance.size()));
    options.numerics.precision = Precision::BFloat16;
    Pipeline pipeline(net, options);
    return tied::train(pipeline, training).weights;
  };
  const auto expected = weights({6});
  tied::expect_near(expected, weights({3, 3}), 2e-3);
  tied::expect_near(expected, weights({2, 2, 2}), 2e-3);
}

// One net, pipeline after pipeline: each cut ties the layers again.
TEST(TiedWeights, AreTiedAgainByTheNextPipeline) {
  const nn::Layers net = tied::make_net(Ties::Three);
  tied::PlainModel plain(Ties::Three);
  const at::Tensor expected = plain.scores(tied::ids(0));
  for (const auto& balance : {std::vector<int>{2, 2, 2}, {3, 3}, {6}, {1, 4, 1}})
    for (const bool are_virtual : {true, false}) {
      Pipeline pipeline(net,
                        {.devices = devices_for(are_virtual, balance.size()), .balance = balance});
      EXPECT_TRUE(at::allclose(pipeline.evaluate(tied::ids(0)).cpu(), expected, 1e-10, 1e-12));
      if (!are_virtual) {  // the layers still are a plain model
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(at::allclose(net.forward(tied::ids(0)), expected, 1e-10, 1e-12));
      }
    }
}

// Two pipelines and the plain model of the same layers: each puts its own tensors in place.
TEST(TiedWeights, ServePipelinesAndThePlainModelInTurn) {
  const nn::Layers net = tied::make_net();
  const auto gradient_of = [&](const std::function<void()>& backward) {
    for (const auto& parameter : net.parameters()) parameter.mutable_grad() = at::Tensor();
    backward();
    return net.named_parameters()[0].second.grad().clone();
  };
  const auto loss = nn::token_cross_entropy();
  const auto plain = [&] { loss.value(net.forward(tied::ids(0)), tied::next_ids(0)).backward(); };
  const at::Tensor expected = gradient_of(plain);
  Pipeline two(net, {.balance = {3, 3}});
  Pipeline one(net, {.balance = {6}});
  const auto step = [&](Pipeline& pipeline) {
    return [&] { pipeline.step(tied::ids(0), tied::next_ids(0), loss); };
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(at::allclose(gradient_of(step(two)), expected, 1e-10, 1e-12));
    EXPECT_TRUE(at::allclose(gradient_of(plain), expected, 1e-10, 1e-12));
    EXPECT_TRUE(at::allclose(gradient_of(step(one)), expected, 1e-10, 1e-12));
  }
}

// Linear layers in a row, and the ties among their weights: the first of each pair is the copy.
using Pairs = std::vector<std::pair<int, int>>;

nn::Layers chain_with_ties(int layers, const Pairs& ties) {
  nn::Layers net(nn::Seed{7});
  for (int i = 0; i < layers; ++i) net.add(text("l", i), tied::linear(4, 4, true));
  for (const auto& [copy, owner] : ties)
    net.tie(text("l", copy, ".weight"), text("l", owner, ".weight"));
  return net;
}

// One step's gradients in plain libtorch, and those of the pipeline.
void expect_plain_gradients(int layers, const Pairs& ties, const PipelineOptions& options) {
  torch::manual_seed(3);
  const auto in_double = torch::TensorOptions(torch::kDouble);
  const at::Tensor input = torch::randn({6, 4}, in_double),
                   target = torch::randn({6, 4}, in_double);
  const nn::Layers plain = chain_with_ties(layers, ties);
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, parameter] : plain.named_parameters())
    weights[name] = parameter.detach().clone().requires_grad_();
  at::Tensor value = input;
  for (int i = 0; i < layers; ++i) {
    int owner = i;
    for (const auto& [copy, of] : ties)
      if (copy == owner) owner = of;
    for (const auto& [copy, of] : ties)  // an owner that is a copy itself
      if (copy == owner) owner = of;
    value = torch::linear(value, weights.at(text("l", owner, ".weight")),
                          weights.at(text("l", i, ".bias")));
  }
  torch::mse_loss(value, target).backward();

  Pipeline pipeline(chain_with_ties(layers, ties), options);
  const auto costs = pipeline.profile({input}, target, nn::mean_squared_error());
  EXPECT_GT(schedule::makespan(pipeline.predict(costs)), 0);
  for (int step = 0; step < 2; ++step) {
    pipeline.zero_grad();
    pipeline.step(input, target, nn::mean_squared_error());
    for (const auto& [name, parameter] : pipeline.named_parameters())
      EXPECT_TRUE(torch::allclose(parameter.grad().cpu(), weights.at(name).grad(), 1e-12, 1e-12))
          << name << " in step " << step;
  }
}

// The copy's last W waits for stages of the owner's rank that run after the owner's last W.
TEST(TiedWeights, ReachAnOwnerThatOtherStagesWaitFor) {
  for (const bool are_virtual : {false, true})
    for (const int micro_batches : {1, 3}) {
      SCOPED_TRACE(text("virtual ", are_virtual, ", ", micro_batches, " micro-batches"));
      expect_plain_gradients(9, {{8, 6}},
                             {.devices = devices_for(are_virtual, 3),
                              .balance = std::vector<int>(9, 1),
                              .micro_batches = micro_batches,
                              .schedule = "interleaved_zero_bubble",
                              .stages_per_rank = 3,
                              .deadline = std::chrono::seconds(60)});
    }
  expect_plain_gradients(2, {{1, 0}},
                         {.devices = {cpu_device()},
                          .balance = {1, 1},
                          .plan = {.table = schedule::read_csv("0F0,1F0,1I0,0B0,1W0\n")}});
}

// The second copy's owner in the chain is the first copy, and both are on one device.
TEST(TiedWeights, InAChainHaveACopyForEachStage) {
  for (const char* schedule : {"looped_bfs", "interleaved_1f1b", "v_half"})
    for (const int segments : {0, 1}) {
      SCOPED_TRACE(text(schedule, ", ", segments, " segments"));
      expect_plain_gradients(4, {{1, 0}, {3, 1}},
                             {.devices = virtual_devices(2),
                              .balance = {1, 1, 1, 1},
                              .micro_batches = 2,
                              .schedule = schedule,
                              .stages_per_rank = 2,
                              .checkpoint_segments = segments});
    }
}

}  // namespace
}  // namespace trestle
