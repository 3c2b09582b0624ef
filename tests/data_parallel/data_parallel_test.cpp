#include "trestle/data_parallel/data_parallel.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/message_of.h"
#include "tests/support/virtual_environment.h"
#include "trestle/recompute/checkpoint.h"

// Arguments, outputs and gradients of trestle::DataParallel. data_parallel_replicas_test.cpp tests
// what replicas share.
namespace trestle::data_parallel {
namespace {

using support::message_of;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    in = register_module("in", torch::nn::Linear(5, 7));
    out = register_module("out", torch::nn::Linear(7, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in = nullptr, out = nullptr;
};
TORCH_MODULE(Net);

Net copy_of(const Net& net) { return Net(std::dynamic_pointer_cast<NetImpl>(net->clone())); }

double largest_difference(const Tensors& a, const Tensors& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i].cpu() - b[i].cpu()).abs().max().item<double>());
  return largest;
}

Tensors gradients_of(const Tensors& parameters) {
  Tensors result;
  for (const at::Tensor& parameter : parameters) result.push_back(parameter.grad());
  return result;
}

class DataParallelOn : public ::testing::TestWithParam<const char*> {};

TEST_P(DataParallelOn, TrainsAsPlainModelOnWholeBatch) {
  torch::manual_seed(1);
  Net plain;
  Net net = copy_of(plain);
  DataParallel parallel(net, parse_devices(GetParam()));
  torch::optim::SGD ours(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD theirs(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const int samples : {8, 9, 5, 3, 2, 1, 7}) {
    const at::Tensor target = torch::randn({samples, 3}, at::kDouble);
    at::Tensor x = torch::randn({samples, 5}, at::kDouble).requires_grad_();
    at::Tensor x2 = x.detach().clone().requires_grad_();
    const at::Tensor output = parallel(x2);
    ASSERT_EQ(output.device(), parse_devices(GetParam())[0].torch);
    EXPECT_LT(largest_difference({plain(x)}, {output}), 1e-12);
    ours.zero_grad();
    theirs.zero_grad();
    torch::mse_loss(plain(x), target).backward();
    torch::mse_loss(parallel(x2), target.to(output.device())).backward();
    EXPECT_LT(largest_difference({x.grad()}, {x2.grad()}), 1e-12);
    EXPECT_LT(
        largest_difference(gradients_of(plain->parameters()), gradients_of(net->parameters())),
        1e-12);
    ours.step();
    theirs.step();
  }
  EXPECT_LT(largest_difference(plain->parameters(), net->parameters()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Devices, DataParallelOn,
                         ::testing::Values("cpu", "virtual:0", "virtual:0,virtual:1",
                                           "virtual:2,virtual:0,virtual:3", "cpu,cpu",
                                           "virtual:0,virtual:1,virtual:2,virtual:3"));

// Returns its arguments and the number of rows that the replica received.
struct EchoImpl : torch::nn::Cloneable<EchoImpl> {
  void reset() override {}
  using Nested = std::tuple<at::Tensor, std::vector<at::Tensor>>;
  using Named = std::map<std::string, at::Tensor>;
  std::tuple<at::Tensor, Nested, Named, std::optional<at::Tensor>, at::Tensor> forward(
      Nested nested, const std::optional<at::Tensor>& maybe, double factor, const std::string& word,
      at::Tensor none) {
    const at::Tensor& x = std::get<0>(nested);
    const at::Tensor rows = at::full({1}, x.size(0), x.options());
    for (at::Tensor& each : std::get<1>(nested)) each = each * factor;
    return {rows, nested, {{word, x + 1}}, maybe, none};
  }
};
TORCH_MODULE(Echo);

TEST(DataParallel, ScattersNestedTensorsAndForwardsOtherArguments) {
  DataParallel parallel(Echo(), virtual_devices(3));
  const at::Tensor x = torch::randn({7, 2}, at::kDouble), y = torch::randn({7}, at::kDouble),
                   z = torch::randn({7, 1, 2}, at::kDouble);
  const auto [rows, nested, named, maybe, none] =
      parallel(EchoImpl::Nested(x, {y, z}), std::optional<at::Tensor>(y), 2.0, std::string("key"),
               at::Tensor());
  EXPECT_TRUE(rows.cpu().equal(torch::tensor({3.0, 3.0, 1.0}, at::kDouble)));  // as torch.chunk
  EXPECT_TRUE(std::get<0>(nested).cpu().equal(x));
  EXPECT_TRUE(std::get<1>(nested).at(0).cpu().equal(y * 2));
  EXPECT_TRUE(std::get<1>(nested).at(1).cpu().equal(z * 2));
  EXPECT_TRUE(named.at("key").cpu().equal(x + 1));
  EXPECT_TRUE(maybe->cpu().equal(y));
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(rows.device(), at::Device("virtual:0"));
  EXPECT_TRUE(x.is_cpu()) << "the caller's arguments stay unchanged";
  const auto [r2, n2, m2, nothing, u2] = parallel(
      EchoImpl::Nested(x, {}), std::optional<at::Tensor>(), 2.0, std::string("key"), at::Tensor());
  EXPECT_FALSE(nothing.has_value());
}

// For n devices and b rows, Python's torch.nn.DataParallel splits as torch.chunk(b, n).
TEST(DataParallel, SplitsAsPythonDoes) {
  const std::vector<std::tuple<int, int, std::vector<double>>> cases = {
      {4, 8, {2, 2, 2, 2}}, {4, 5, {2, 2, 1}}, {4, 6, {2, 2, 2}},     {4, 9, {3, 3, 3}},
      {3, 2, {1, 1}},       {2, 1, {1}},       {4, 10, {3, 3, 3, 1}}, {3, 0, {0, 0, 0}}};
  for (const auto& [devices, rows, expected] : cases) {
    DataParallel parallel(Echo(), virtual_devices(devices));
    const auto seen =
        std::get<0>(parallel(EchoImpl::Nested(torch::randn({rows, 2}, at::kDouble), {}),
                             std::optional<at::Tensor>(), 1.0, std::string("x"), at::Tensor()));
    EXPECT_TRUE(seen.cpu().equal(torch::tensor(expected, at::kDouble))) << devices << " " << rows;
  }
}

struct LossImpl : torch::nn::Cloneable<LossImpl> {
  void reset() override {}
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, std::int64_t times) {
    return {x.sum() * times, times == 0 ? x.sum(0) : x.sum(0, /*keepdim=*/true)};
  }
};
TORCH_MODULE(Loss);

TEST(DataParallel, GathersScalarLossesAndSplitsOtherDimension) {
  DataParallel parallel(Loss(), virtual_devices(2), {.output_device = cpu_device(), .dim = 1});
  const at::Tensor x = torch::randn({2, 4}, at::kDouble);
  const auto [loss, columns] = parallel(x, std::int64_t{3});
  EXPECT_TRUE(loss.is_cpu());
  EXPECT_LT(largest_difference({x.view({2, 2, 2}).sum({0, 2}) * 3}, {loss}), 1e-12);
  EXPECT_LT(largest_difference({x.sum(0, true)}, {columns}), 1e-12);
  EXPECT_THAT(message_of([&] { parallel(x, std::int64_t{0}); }),
              HasSubstr("output 1 of the replicas, [2] of the first one, has no dimension 1"));
  DataParallel one(Loss(), virtual_devices(1));
  EXPECT_EQ(one(x, std::int64_t{3}).first.dim(), 0) << "one device calls the module itself";
}

TEST(DataParallel, RunsAllReplicasWithoutTensorArguments) {
  struct ConstantImpl : torch::nn::Cloneable<ConstantImpl> {
    void reset() override {}
    at::Tensor forward(double value) { return torch::full({1}, value); }
  };
  DataParallel parallel(std::make_shared<ConstantImpl>(), virtual_devices(3));
  EXPECT_TRUE(parallel(4.0).cpu().equal(torch::full({3}, 4.0)));
}

TEST(DataParallel, RefusesTensorsThatSplitDifferently) {
  DataParallel parallel(Echo(), virtual_devices(4));
  const auto call = [&](const at::Tensor& a, const at::Tensor& b) {
    return message_of([&] {
      parallel(EchoImpl::Nested(a, {b}), std::optional<at::Tensor>(), 1.0, std::string("x"),
               at::Tensor());
    });
  };
  EXPECT_THAT(
      call(torch::randn({8, 2}, at::kDouble), torch::randn({5}, at::kDouble)),
      HasSubstr("tensor 0, [8, 2], into 4 slices along dimension 0, tensor 1, [5], into 3"));
  EXPECT_THAT(call(torch::randn({8, 2}, at::kDouble), torch::randn({}, at::kDouble)),
              HasSubstr("tensor 1 of the arguments has no dimension"));
  EXPECT_THAT(message_of([] { DataParallel parallel(Echo(), {}); }),
              HasSubstr("at least one device"));
}

TEST(DataParallel, SupportsSecondDerivativesAndAutogradGrad) {
  torch::manual_seed(2);
  Net plain;
  Net net = copy_of(plain);
  DataParallel parallel(net, virtual_devices(3));
  const at::Tensor x = torch::randn({5, 5}, at::kDouble);
  const auto penalty = [&](const Tensors& parameters, const at::Tensor& output) {
    const auto first = torch::autograd::grad({output.square().sum()}, parameters, {},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    at::Tensor sum;
    for (const at::Tensor& each : first) {
      const at::Tensor square = each.square().sum();
      sum = sum.defined() ? sum + square : square;
    }
    sum.backward();
  };
  penalty(plain->parameters(), plain(x));
  penalty(net->parameters(), parallel(x));
  EXPECT_LT(largest_difference(gradients_of(plain->parameters()), gradients_of(net->parameters())),
            1e-9);
}

TEST(DataParallel, RunsTwoForwardsBeforeTheirBackwards) {
  torch::manual_seed(3);
  Net plain;
  Net net = copy_of(plain);
  DataParallel parallel(net, virtual_devices(2));
  // the second round accumulates into the first round's gradients
  for (int round = 0; round < 2; ++round) {
    const at::Tensor a = torch::randn({4, 5}, at::kDouble), b = torch::randn({3, 5}, at::kDouble);
    const at::Tensor first = parallel(a).sum(), second = parallel(b).square().sum();
    second.backward();
    first.backward();
    plain(a).sum().backward();
    plain(b).square().sum().backward();
  }
  EXPECT_LT(largest_difference(gradients_of(plain->parameters()), gradients_of(net->parameters())),
            1e-12);
}

// Recomputation copies the weights to the replicas again, inside the checkpointed function.
TEST(DataParallel, TrainsInsideCheckpointedFunction) {
  for (const char* devices : {"cpu,cpu", "virtual:0,virtual:1,virtual:2"}) {
    torch::manual_seed(5);
    Net plain;
    Net net = copy_of(plain);
    DataParallel parallel(net, parse_devices(devices));
    torch::optim::SGD ours(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD theirs(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const at::Device first = parse_devices(devices)[0].torch;
    for (int step = 0; step < 6; ++step) {
      const at::Tensor x = torch::randn({7, 5}, at::kDouble),
                       target = torch::randn({7, 3}, at::kDouble);
      ours.zero_grad();
      theirs.zero_grad();
      torch::mse_loss(plain(x), target).backward();
      const auto call = [&](const at::Tensor& input) { return parallel(input); };
      const at::Tensor output = nn::checkpoint(call, x.clone().requires_grad_());
      torch::mse_loss(output, target.to(first)).backward();
      ASSERT_LT(
          largest_difference(gradients_of(plain->parameters()), gradients_of(net->parameters())),
          1e-12)
          << devices << ", step " << step;
      ours.step();
      theirs.step();
    }
  }
}

TEST(DataParallel, RecomputesSameDropoutMasks) {
  for (const char* devices : {"cpu,cpu", "virtual:0,virtual:1,virtual:2"}) {
    const auto make = [] {
      return torch::nn::Sequential(torch::nn::Linear(5, 40), torch::nn::Dropout(0.5),
                                   torch::nn::Linear(40, 3));
    };
    torch::manual_seed(6);
    torch::nn::Sequential net = make();
    DataParallel parallel(net, parse_devices(devices));
    const at::Tensor x = torch::randn({7, 5});
    std::vector<Tensors> gradients;
    for (const bool recomputes : {false, true}) {
      torch::manual_seed(7);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const auto call = [&](const at::Tensor& input) { return parallel(input); };
        at::Tensor input = x.clone().requires_grad_();
        (recomputes ? nn::checkpoint(call, input) : call(input)).sum().backward();
        gradients.push_back({});
        for (const at::Tensor& gradient : gradients_of(net->parameters()))
          gradients.back().push_back(gradient.clone());
      }
    }
    for (std::size_t step = 0; step < 3; ++step)
      EXPECT_LT(largest_difference(gradients[step], gradients[step + 3]), 1e-6) << devices;
    EXPECT_GT(largest_difference(gradients[0], gradients[1]), 1e-3) << "masks differ between steps";
  }
}

// A forward inside a backward: the device's backward thread must not wait for other threads.
struct CallsBack : torch::autograd::Function<CallsBack> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::function<at::Tensor()>* call) {
    context->saved_data["call"] = reinterpret_cast<std::int64_t>(call);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* call =
        reinterpret_cast<std::function<at::Tensor()>*>(context->saved_data["call"].toInt());
    return {gradients[0] + (*call)().sum() * 0, at::Tensor()};
  }
};

TEST(DataParallel, RunsInsideBackward) {
  Net net;
  DataParallel parallel(net, virtual_devices(2));
  const at::Tensor x = torch::randn({4, 5}, at::kDouble);
  std::function<at::Tensor()> call = [&] {
    const torch::AutoGradMode on(true);
    at::Tensor inner = parallel(x);
    inner.sum().backward();
    return inner.detach();
  };
  at::Tensor y = torch::randn({2}, at::kDouble).to(at::Device("virtual:1")).requires_grad_();
  CallsBack::apply(y.to(at::Device("virtual:0")), &call).sum().backward();
  EXPECT_TRUE(y.grad().defined());
  EXPECT_TRUE(net->in->weight.grad().defined());
}

}  // namespace
}  // namespace trestle::data_parallel
