#include <gmock/gmock.h>
#include <torch/torch.h>

#include <thread>

#include "tests/support/message_of.h"
#include "trestle/data_parallel/data_parallel.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/detail/tied_parameters.h"
#include "trestle/precision/autocast.h"

// Which state the replicas of trestle::DataParallel share.
namespace trestle::data_parallel {
namespace {

using support::message_of;
using ::testing::HasSubstr;

struct NormNetImpl : torch::nn::Cloneable<NormNetImpl> {
  NormNetImpl() { reset(); }
  void reset() override {
    in = register_module("in", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(in(x)); }
  torch::nn::Linear in = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};
TORCH_MODULE(NormNet);

// As in Python: each replica normalizes by its own statistics, and only the first replica's are
// kept.
TEST(DataParallelReplicas, KeepFirstReplicasBatchNormStatistics) {
  torch::manual_seed(1);
  NormNet plain;
  NormNet net(std::dynamic_pointer_cast<NormNetImpl>(plain->clone()));
  DataParallel parallel(net, virtual_devices(3));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = torch::randn({8, 3}, at::kDouble);
    plain->zero_grad();
    net->zero_grad();
    const auto running = [&] { return plain->norm->running_var.clone(); };
    const auto parts = x.chunk(3);
    std::vector<at::Tensor> outputs = {plain(parts[0])};
    const at::Tensor kept = running(), mean = plain->norm->running_mean.clone();
    for (int i = 1; i < 3; ++i) outputs.push_back(plain(parts[i]));
    plain->norm->running_var.variable_data().copy_(kept);
    plain->norm->running_mean.variable_data().copy_(mean);
    plain->norm->num_batches_tracked.fill_(step + 1);
    const at::Tensor output = parallel(x);
    EXPECT_TRUE(at::allclose(at::cat(outputs), output.cpu(), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(kept, net->norm->running_var.cpu(), 1e-12, 1e-12));
    EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), step + 1);
    output.pow(3).sum().backward();
    at::cat(outputs).pow(3).sum().backward();
    EXPECT_TRUE(at::allclose(plain->in->weight.grad(), net->in->weight.grad().cpu(), 1e-9, 1e-9));
  }
  net->eval();  // in evaluation mode all replicas use the first replica's statistics
  plain->eval();
  const at::Tensor x = torch::randn({5, 3}, at::kDouble);
  EXPECT_TRUE(at::allclose(plain(x), parallel(x).cpu(), 1e-12, 1e-12));
}

TEST(DataParallelReplicas, FollowModesAndRequiresGradOfModule) {
  NormNet net;
  DataParallel parallel(net, virtual_devices(3));
  const at::Tensor x = torch::randn({6, 3}, at::kDouble);
  net->norm->eval();  // only this child module
  parallel(x);
  for (const auto& replica : parallel.replicas()) {
    EXPECT_TRUE(replica->is_training());
    EXPECT_FALSE(replica->norm->is_training());
  }
  parallel.train();
  parallel(x);
  for (const auto& replica : parallel.replicas()) EXPECT_TRUE(replica->norm->is_training());
  net->in->weight.set_requires_grad(false);
  parallel(x).sum().backward();
  EXPECT_FALSE(net->in->weight.grad().defined());
  EXPECT_FALSE(parallel.replicas()[1]->in->weight.requires_grad());
  EXPECT_TRUE(net->in->bias.grad().defined());
  net->in->weight.set_requires_grad(true);
  parallel(x).pow(2).sum().backward();
  EXPECT_TRUE(net->in->weight.grad().defined());
}

TEST(DataParallelReplicas, KeepParameterObjects) {
  torch::manual_seed(4);
  torch::nn::Linear net(3, 2);
  const at::Tensor next = torch::rand({2});
  torch::manual_seed(4);
  net = torch::nn::Linear(3, 2);
  const auto before = net->parameters();
  const auto* const impl = net->weight.unsafeGetTensorImpl();
  at::Tensor gradient = torch::ones({2, 3});
  net->weight.mutable_grad() = gradient;
  DataParallel parallel(net, virtual_devices(2));
  EXPECT_EQ(net->weight.unsafeGetTensorImpl(), impl);
  EXPECT_EQ(net->weight.device(), at::Device("virtual:0"));
  EXPECT_EQ(net->weight.grad().device(), at::Device("virtual:0"));
  EXPECT_TRUE(before[0].is_same(net->weight));
  EXPECT_EQ(parallel.module(), net.ptr());
  EXPECT_TRUE(torch::rand({2}).equal(next)) << "copies consume no random numbers";
  EXPECT_EQ(parallel.named_parameters()[0].key(), "weight");
}

TEST(DataParallelReplicas, CopyEveryKindOfChange) {
  torch::nn::Linear net(3, 2);
  DataParallel parallel(net, virtual_devices(2));
  const at::Tensor x = torch::randn({4, 3});
  const auto agrees = [&] {
    const at::Tensor expected = at::linear(x, net->weight.detach().cpu(), net->bias.detach().cpu());
    return at::allclose(expected, parallel(x).detach().cpu(), 1e-5, 1e-6);
  };
  EXPECT_TRUE(agrees());
  {
    const torch::NoGradGuard no_grad;
    net->weight.mul_(2);
  }
  EXPECT_TRUE(agrees());
  net->weight.set_data(torch::randn({2, 3}).to(net->weight.device()));
  EXPECT_TRUE(agrees());
  parallel(x).sum().backward();  // from now on an optimizer may write without bumping versions
  {
    const torch::NoGradGuard no_grad;
    parallel(x);
    net->weight.variable_data().mul_(3);
    EXPECT_TRUE(agrees());
    net->weight.variable_data().mul_(3);
    net->zero_grad();
  }
  parallel.refresh();  // without gradients, only refresh() reports the change
  EXPECT_TRUE(agrees());
  net->to(at::kBFloat16);
  EXPECT_EQ(parallel(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  EXPECT_EQ(parallel.replicas()[1]->weight.scalar_type(), at::kBFloat16);
}

// A change between forward and backward: replicas refuse it as the plain module does.
TEST(DataParallelReplicas, RefuseChangeBeforeBackward) {
  torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 2));
  DataParallel parallel(net, virtual_devices(2));
  at::Tensor x = torch::randn({4, 3}).requires_grad_();
  const at::Tensor loss = parallel(x).sum();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.add_(1);
  }
  parallel(x);
  EXPECT_THAT(message_of<std::exception>([&] { loss.backward(); }),
              HasSubstr("modified by an inplace operation"));
}

struct PlainModule : torch::nn::Module {
  explicit PlainModule(int width = 2)
      : linear(register_module("linear", torch::nn::Linear(2, width))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear;
};

TEST(DataParallelReplicas, RefuseUncloneableModuleAndNameBothAlternatives) {
  const std::string message = message_of(
      [] { DataParallel parallel(std::make_shared<PlainModule>(), virtual_devices(2)); });
  EXPECT_THAT(message, HasSubstr("PlainModule"));
  EXPECT_THAT(message, HasSubstr("[] { return Net(); }"));
  EXPECT_THAT(message, HasSubstr("torch::nn::Cloneable"));
  // one replica needs no clone
  DataParallel alone(std::make_shared<PlainModule>(), virtual_devices(1));
  EXPECT_EQ(alone(torch::ones({3, 2})).size(0), 3);
}

TEST(DataParallelReplicas, FactoryDoesNotConsumeRandomNumbers) {
  torch::manual_seed(5);
  const PlainModule plain;
  const at::Tensor next = torch::rand({2});
  torch::manual_seed(5);
  DataParallel parallel([] { return std::make_shared<PlainModule>(); }, virtual_devices(3));
  EXPECT_TRUE(torch::rand({2}).equal(next));
  EXPECT_TRUE(parallel.module()->linear->weight.cpu().equal(plain.linear->weight));
  const at::Tensor x = torch::randn({5, 2});
  EXPECT_TRUE(at::allclose(parallel(x).cpu(),
                           at::linear(x, plain.linear->weight, plain.linear->bias), 1e-5, 1e-6));
  int made = 0;
  EXPECT_THAT(message_of<std::exception>([&] {
                DataParallel uneven([&] { return std::make_shared<PlainModule>(2 + made++); },
                                    virtual_devices(2));
              }),
              HasSubstr("parameter 'linear.weight' is [2, 2] in one and [3, 2] in another one"));
}

TEST(DataParallelReplicas, AcceptFactoryOfLayers) {
  const auto make = [] {
    nn::Layers net(nn::Seed{7});
    net.add("in", [] { return torch::nn::Linear(3, 4); });
    net.add("relu", [](const at::Tensor& x) { return at::relu(x); }).keep_output("skip");
    net.add("out", [] { return torch::nn::Linear(4, 4); });
    net.add("sum", [](const at::Tensor& x, const at::Tensor& skip) { return x + skip; })
        .take("skip");
    return net;
  };
  const nn::Layers plain = make();
  DataParallel parallel(make, virtual_devices(2));
  const at::Tensor x = torch::randn({5, 3});
  plain.forward(x).square().sum().backward();
  parallel(x).square().sum().backward();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(at::allclose(plain.parameters()[i].grad(), parallel.parameters()[i].grad().cpu(),
                             1e-4, 1e-5));
}

TEST(DataParallelReplicas, RefuseModuleMovedOrChangedAfterwards) {
  torch::nn::Linear net(3, 2);
  DataParallel parallel(net, virtual_devices(2));
  const at::Tensor x = torch::randn({4, 3});
  net->to(at::Device("virtual:1"));
  EXPECT_THAT(message_of<std::exception>([&] { parallel(x); }),
              HasSubstr("belongs on virtual:0, but 'weight' is on virtual:1"));
  net->to(at::Device("virtual:0"));
  parallel(x);
  net->register_parameter("more", torch::ones({1}, at::Device("virtual:0")));
  EXPECT_THAT(message_of<std::exception>([&] { parallel(x); }), HasSubstr("were replaced"));
}

struct OwnError : std::exception {
  const char* what() const noexcept override { return "mine"; }
};

struct ThrowsImpl : torch::nn::Cloneable<ThrowsImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x, int kind) {
    if (x.device().index() == 0) return x;
    if (kind == 0) throw OwnError();
    if (kind == 1) throw std::invalid_argument("wrong number");
    if (kind == 2) return at::matmul(x, torch::ones({7, 7}, x.device()));
    return torch::ones({1 << 20}, x.device());
  }
};
TORCH_MODULE(Throws);

TEST(DataParallelReplicas, ExceptionsKeepTypeAndNameDevice) {
  DataParallel parallel(Throws(), virtual_devices(2));
  const at::Tensor x = torch::randn({4, 3});
  EXPECT_THROW(parallel(x, 0), OwnError);
  try {
    parallel(x, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("wrong number"));
    EXPECT_THAT(error.what(), HasSubstr("in replica 1 of 2, on virtual:1"));
  }
  EXPECT_THAT(message_of<std::exception>([&] { parallel(x, 2); }), HasSubstr("on virtual:1"));
  set_budget(at::Device("virtual:1"), 1 << 20);
  EXPECT_THROW(parallel(x, 3), c10::OutOfMemoryError);
  set_budget(at::Device("virtual:1"), 0);
  EXPECT_EQ(parallel(x.slice(0, 0, 1), 0).size(0), 1) << "the replicas stay usable";
}

struct ModesImpl : torch::nn::Cloneable<ModesImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    const auto made = static_cast<int>(at::matmul(x, x.t()).scalar_type());
    return torch::tensor(
        {{int{at::GradMode::is_enabled()}, int{c10::InferenceMode::is_enabled()}, made}});
  }
};

TEST(DataParallelReplicas, InheritGradModeAndAutocast) {
  // Devices of two kinds, one of them twice.
  DataParallel parallel(std::make_shared<ModesImpl>(),
                        {cpu_device(), virtual_devices(2)[1], cpu_device()});
  const at::Tensor x = torch::ones({3, 2});
  const auto all = [&](int grad, int inference, at::ScalarType made) {
    return parallel(x).equal(
        torch::tensor({{grad, inference, static_cast<int>(made)}}).expand({3, 3}));
  };
  EXPECT_TRUE(all(1, 0, at::kFloat));
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(all(0, 0, at::kFloat));
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(all(0, 1, at::kFloat));
  }
  for (const auto& [precision, dtype] :
       {std::pair(Precision::BFloat16, at::kBFloat16), std::pair(Precision::Float16, at::kHalf)}) {
    const precision::Autocast autocast(precision);
    EXPECT_TRUE(all(1, 0, dtype));
  }
  EXPECT_TRUE(all(1, 0, at::kFloat));
}

TEST(DataParallelReplicas, TrainAsPlainModelUnderAutocast) {
  torch::manual_seed(6);
  torch::nn::Sequential plain(torch::nn::Linear(8, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 4));
  torch::nn::Sequential net(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone()));
  DataParallel parallel(net, parse_devices("cpu,cpu,cpu"));
  torch::optim::SGD ours(net->parameters(), 0.1), theirs(plain->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = torch::randn({9, 8});
    at::Tensor output, expected;
    {
      const precision::Autocast autocast(Precision::BFloat16);
      output = parallel(x);
      expected = plain->forward(x);
    }
    ours.zero_grad();
    theirs.zero_grad();
    output.to(at::kFloat).square().sum().backward();
    expected.to(at::kFloat).square().sum().backward();
    ours.step();
    theirs.step();
  }
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(at::allclose(plain->parameters()[i], net->parameters()[i], 0.05, 0.02));
}

TEST(DataParallelReplicas, DropoutDependsOnSeedOnly) {
  for (const char* devices : {"cpu,cpu,cpu", "virtual:0,virtual:1"}) {
    DataParallel parallel(torch::nn::Dropout(0.5), parse_devices(devices));
    const at::Tensor x = torch::ones({6, 400});
    torch::manual_seed(3);
    const at::Tensor first = parallel(x), second = parallel(x);
    for (int i = 0; i < 5; ++i) {
      torch::manual_seed(3);
      ASSERT_TRUE(parallel(x).equal(first));
      ASSERT_TRUE(parallel(x).equal(second));
    }
    EXPECT_FALSE(first.equal(second));
    EXPECT_FALSE(first.slice(0, 0, 2).equal(first.slice(0, 4, 6)))
        << "replicas draw different numbers";
    parallel.eval();
    EXPECT_TRUE(parallel(x).cpu().equal(x));
  }
}

TEST(DataParallelReplicas, RefuseNestedCalls) {
  struct AgainImpl : torch::nn::Cloneable<AgainImpl> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& x, const std::function<void()>* again) {
      if (again != nullptr && x.device().index() == 0) (*again)();
      return x;
    }
  };
  DataParallel parallel(std::make_shared<AgainImpl>(), virtual_devices(2));
  const at::Tensor x = torch::ones({2, 1});
  const std::function<void()>* none = nullptr;
  const std::function<void()> again = [&] { parallel(x, none); };
  EXPECT_THAT(message_of<std::exception>([&] { parallel(x, &again); }),
              HasSubstr("while another call"));
  EXPECT_EQ(parallel(x, none).size(0), 2);
}

// The gradient of a reused or tied weight is the sum over all uses. Sequential::clone() drops
// names, which does not matter here.
TEST(DataParallelReplicas, SupportTiedWeightsAndNamedSequentials) {
  struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
    void reset() override {
      weight = register_parameter("weight", torch::randn({3, 3}, at::kDouble));
      again = register_parameter("again", torch::randn({3, 3}, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) {
      return x.matmul(weight).matmul(weight).matmul(again);
    }
    at::Tensor weight, again;
  };
  const auto net = std::make_shared<TiedImpl>();
  net->reset();
  nn::replace_parameter(*net, "again", net->weight,
                        [](torch::nn::Module& m) { return &dynamic_cast<TiedImpl&>(m).again; });
  at::Tensor weight = net->weight.detach().clone().requires_grad_();
  DataParallel parallel(net, virtual_devices(3));
  const at::Tensor x = torch::randn({5, 3}, at::kDouble);
  parallel(x).square().sum().backward();
  x.matmul(weight).matmul(weight).matmul(weight).square().sum().backward();
  EXPECT_TRUE(at::allclose(weight.grad(), net->weight.grad().cpu(), 1e-9, 1e-9));

  torch::nn::Sequential named({{"in", torch::nn::Linear(3, 2)}});
  DataParallel sequential(named, virtual_devices(2));
  EXPECT_EQ(sequential(torch::ones({3, 3})).size(0), 3);
  EXPECT_EQ(sequential.named_parameters()[0].key(), "in.weight");
}

}  // namespace
}  // namespace trestle::data_parallel
