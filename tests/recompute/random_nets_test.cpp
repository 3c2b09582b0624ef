#include <random>

#include "tests/recompute/same_as_plain.h"
#include "trestle/device/device.h"

// Random nets with random checkpointed regions, compared with the same nets without them.
namespace trestle {
namespace {

// A tree of operations on a list of values. Leaves are operations, inner nodes run their children
// one after the other, as a region or not.
struct Step {
  int kind = 0;
  std::size_t a = 0, b = 0;          // indices of its arguments
  torch::nn::AnyModule module = {};  // for some kinds
  std::vector<Step> children = {};   // for a region
  nn::CheckpointOptions options = {};
  bool is_region = false;
};

constexpr int width = 6;

class Drawn {
 public:
  Drawn(int seed, at::Device device) : draw_(seed), device_(device) { torch::manual_seed(seed); }

  std::vector<Step> steps(int count, int depth) {
    std::vector<Step> result;
    for (int i = 0; i < count; ++i) result.push_back(step(depth));
    return result;
  }
  int number(int below) { return static_cast<int>(draw_() % static_cast<unsigned>(below)); }

  Tensors parameters;
  Tensors buffers;

 private:
  Step step(int depth) {
    Step step;
    step.a = draw_();
    step.b = draw_();
    if (depth > 0 && number(3) == 0) {
      step.is_region = true;
      step.options = {.early_stop = number(2) == 0, .copy_inputs = number(2) == 0};
      step.children = steps(1 + number(4), depth - 1);
      return step;
    }
    step.kind = number(12);
    if (step.kind == 0) take(step, torch::nn::Linear(width, width));
    if (step.kind == 1) take(step, torch::nn::BatchNorm1d(width));
    if (step.kind == 2) take(step, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    if (step.kind == 3 && !shared_.is_empty()) step.module = shared_;  // reuses a module
    return step;
  }
  template <class Module>
  void take(Step& step, Module module) {
    module->to(device_);
    for (const Tensor& p : module->parameters()) parameters.push_back(p);
    for (const Tensor& b : module->buffers()) buffers.push_back(b);
    step.module = torch::nn::AnyModule(module);
    if (number(2) == 0) shared_ = step.module;
    if (number(4) == 0) parameters.back().requires_grad_(false);
  }

  std::mt19937 draw_;
  at::Device device_;
  torch::nn::AnyModule shared_;
};

Tensor at_index(const Tensors& values, std::size_t i) { return values[i % values.size()]; }

Tensors run(std::vector<Step>& steps, Tensors values, bool with);

Tensor run_one(Step& step, const Tensors& values) {
  const Tensor a = at_index(values, step.a), b = at_index(values, step.b);
  switch (step.kind) {
    case 3:
      if (step.module.is_empty()) return a.sigmoid();
      [[fallthrough]];
    case 0:
    case 1:
    case 2:
      return step.module.forward(a);
    case 4:
      return a * b;
    case 5:
      return at::dropout(a, 0.3, true);
    case 6:
      return (a + b).relu_();
    case 7:
      return a.detach() + b;
    case 8:
      return a.t().tanh().t();
    case 9: {
      const at::NoGradGuard no_grad;
      return a.abs();
    }
    case 10:
      return at::softmax(a, 1) + at::rand_like(a);
    default:
      return at::where(a > 0, a.sin(), b.cos());
  }
}

Tensors run(std::vector<Step>& steps, Tensors values, bool with) {
  for (Step& step : steps) {
    if (!step.is_region) {
      values.push_back(run_one(step, values));
    } else if (!with) {
      values = run(step.children, values, with);
    } else {
      values = checkpoint(
          step.options,
          [&step](Tensors taken) { return run(step.children, std::move(taken), true); }, values);
    }
    if (values.size() > 4) values.erase(values.begin());
  }
  return values;
}

// The results of two steps with restored buffers: losses, gradients, buffers, and random numbers.
Tensors result_of(std::vector<Step>& steps, Drawn& net, at::Device device, bool with) {
  Tensors before;
  for (const Tensor& b : net.buffers) before.push_back(b.clone());
  for (Tensor& p : net.parameters) p.mutable_grad() = Tensor();
  torch::manual_seed(77);
  const Tensor x = at::randn({5, width}).to(device).requires_grad_();
  const Tensor fixed = at::randn({5, width}).to(device);
  Tensors result;
  for (int i = 0; i < 2; ++i) {
    Tensor loss = x.sum() * 0;
    for (const Tensor& y : run(steps, {x, fixed}, with)) loss = loss + y.square().mean();
    result.push_back(loss.detach().cpu());
    loss.backward({}, /*retain_graph=*/i == 0);
    if (i == 0) loss.backward();
  }
  result.push_back(x.grad().cpu());
  for (const Tensor& p : net.parameters)
    result.push_back(p.grad().defined() ? p.grad().cpu() : p.grad());
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < before.size(); ++i) {
    result.push_back(net.buffers[i].cpu().clone());
    net.buffers[i].copy_(before[i]);
  }
  result.push_back(at::rand({3}));
  return result;
}

TEST(RandomNets, WithAndWithoutCheckpointing) {
  int regions = 0;
  for (int seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const at::Device device = seed % 3 == 0 ? at::Device("virtual:1") : at::Device("cpu");
    Drawn net(seed, device);
    auto steps = net.steps(4 + net.number(8), 3);
    for (const Step& step : steps) regions += step.is_region ? 1 : 0;
    expect_equal(result_of(steps, net, device, false), result_of(steps, net, device, true));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(regions, 100);
}

}  // namespace
}  // namespace trestle
