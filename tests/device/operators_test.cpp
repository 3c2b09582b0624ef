// Operators of every kind, forward and backward, compared with the CPU.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support.h"

namespace trestle {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;
using testing::on_virtual;
using testing::same_bits;
using testing::virtual_device;

// x is {2, 4, 6, 6} and requires a gradient. The result and x's gradient must equal the CPU's.
struct OperatorCase {
  const char* name;
  Tensor (*run)(const Tensor& x);
  double tolerance = 0;  // 0 = the same bits
};
void PrintTo(const OperatorCase& value, std::ostream* out) { *out << value.name; }

class OperatorTest : public ::testing::TestWithParam<OperatorCase> {};

TEST_P(OperatorTest, EqualsTheCpu) {
  Tensor results[2], gradients[2];
  int i = 0;
  for (const at::Device device : {at::Device(at::kCPU), virtual_device(2)}) {
    torch::manual_seed(3);
    const auto x = torch::randn({2, 4, 6, 6}).to(device).requires_grad_();
    const c10::DeviceGuard guard(virtual_device(2));
    results[i] = GetParam().run(x);
    EXPECT_EQ(results[i].device(), device);
    if (results[i].requires_grad()) {
      results[i].square().sum().backward();
      EXPECT_EQ(x.grad().device(), device);
      gradients[i] = x.grad().cpu();
    }
    results[i] = results[i].detach().cpu();
    ++i;
  }
  if (GetParam().tolerance == 0) {
    EXPECT_TRUE(same_bits(results[0], results[1]));
  } else {
    EXPECT_TRUE(
        torch::allclose(results[0], results[1], GetParam().tolerance, GetParam().tolerance));
  }
  ASSERT_EQ(gradients[0].defined(), gradients[1].defined());
  if (gradients[0].defined()) {
    const double tolerance = GetParam().tolerance;
    EXPECT_TRUE(tolerance == 0 ? same_bits(gradients[0], gradients[1])
                               : torch::allclose(gradients[0], gradients[1], tolerance, tolerance));
  }
}

// Weights and constants of a case, the same on every device.
Tensor values(const Tensor& like, at::IntArrayRef size) {
  const auto count = c10::multiply_integers(size);
  return torch::linspace(-1, 1, count).view(size).to(like.device());
}

const OperatorCase neural[] = {
    {"linear",
     [](const Tensor& x) {
       return F::linear(x, values(x, {3, 6}), values(x, {3}));
     }},
    {"conv1d",
     [](const Tensor& x) {
       return torch::conv1d(x.flatten(2), values(x, {4, 2, 3}), {}, 1, 1, 2, 2);
     }},
    {"conv2d",
     [](const Tensor& x) {
       return torch::conv2d(x, values(x, {5, 4, 3, 3}), values(x, {5}), 2, 1);
     }},
    {"conv2d_depthwise",
     [](const Tensor& x) {
       return torch::conv2d(x, values(x, {4, 1, 3, 3}), {}, 1, 1, 1, 4);
     }},
    {"conv3d",
     [](const Tensor& x) {
       return torch::conv3d(x.unsqueeze(1), values(x, {3, 1, 2, 2, 2}));
     }},
    {"conv_transpose2d",
     [](const Tensor& x) {
       return torch::conv_transpose2d(x, values(x, {4, 3, 2, 2}), {}, 2);
     }},
    {"conv_transpose3d",
     [](const Tensor& x) {
       return torch::conv_transpose3d(x.view({2, 2, 2, 6, 6}), values(x, {2, 3, 1, 2, 2}),
                                      values(x, {3}), {1, 2, 2});
     }},
    {"batch_norm3d",
     [](const Tensor& x) {
       return torch::batch_norm(x.view({2, 2, 2, 6, 6}), values(x, {2}), values(x, {2}),
                                values(x, {2}), values(x, {2}).abs() + 1, true, 0.1, 1e-5, false);
     }},
    {"batch_norm",
     [](const Tensor& x) {
       return torch::batch_norm(x, values(x, {4}), values(x, {4}), values(x, {4}),
                                values(x, {4}).abs() + 1, true, 0.1, 1e-5, false);
     }},
    {"layer_norm", [](const Tensor& x) { return torch::layer_norm(x, {6}); }},
    {"group_norm", [](const Tensor& x) { return torch::group_norm(x, 2); }},
    {"instance_norm", [](const Tensor& x) { return F::instance_norm(x); }},
    {"max_pool2d", [](const Tensor& x) { return torch::max_pool2d(x, 2); }},
    {"max_pool2d_with_indices",
     [](const Tensor& x) { return std::get<0>(torch::max_pool2d_with_indices(x, 3, 2)); }},
    {"max_pool3d",
     [](const Tensor& x) {
       return torch::max_pool3d(x.view({2, 2, 2, 6, 6}), {1, 2, 2});
     }},
    {"avg_pool2d", [](const Tensor& x) { return torch::avg_pool2d(x, 2); }},
    {"adaptive_avg_pool2d",
     [](const Tensor& x) {
       return torch::adaptive_avg_pool2d(x, {1, 1});
     }},
    {"adaptive_avg_pool2d_uneven",
     [](const Tensor& x) {
       return torch::adaptive_avg_pool2d(x, {4, 3});
     }},
    {"pad_constant",
     [](const Tensor& x) {
       return torch::constant_pad_nd(x, {1, 0, 2, 1}, 3);
     }},
    {"pad_reflect",
     [](const Tensor& x) {
       return torch::reflection_pad2d(x, {1, 1, 2, 2});
     }},
    {"pad_replicate",
     [](const Tensor& x) {
       return torch::replication_pad2d(x, {1, 1, 2, 2});
     }},
    {"pad_replicate_volume",
     [](const Tensor& x) {
       return torch::replication_pad3d(x.view({2, 2, 2, 6, 6}), {1, 1, 2, 2, 1, 0});
     }},
    {"upsample_bilinear",
     [](const Tensor& x) {
       return at::upsample_bilinear2d(x, {12, 12}, true);
     }},
    {"upsample_trilinear",
     [](const Tensor& x) {
       return at::upsample_trilinear3d(x.view({2, 2, 2, 6, 6}), {4, 12, 12}, true);
     }},
    {"upsample_nearest",
     [](const Tensor& x) {
       return at::upsample_nearest2d(x, {12, 12});
     }},
    {"relu_in_place", [](const Tensor& x) { return (x * 2).relu_(); }},
    {"leaky_relu", [](const Tensor& x) { return torch::leaky_relu(x, 0.1); }},
    {"gelu", [](const Tensor& x) { return torch::gelu(x); }},
    {"silu", [](const Tensor& x) { return torch::silu(x); }},
    {"prelu", [](const Tensor& x) { return torch::prelu(x, values(x, {4})); }},
    {"softmax", [](const Tensor& x) { return torch::softmax(x, 1); }},
    {"log_softmax", [](const Tensor& x) { return torch::log_softmax(x, 1); }},
    {"cross_entropy",
     [](const Tensor& x) {
       return F::cross_entropy(x, torch::ones({2, 6, 6}, x.options().dtype(torch::kLong)));
     }},
    {"cross_entropy_weighted",
     [](const Tensor& x) {
       return F::cross_entropy(
           x, torch::ones({2, 6, 6}, x.options().dtype(torch::kLong).requires_grad(false)),
           F::CrossEntropyFuncOptions()
               .weight(values(x, {4}).abs())
               .ignore_index(2)
               .label_smoothing(0.1));
     }},
    {"mse_loss", [](const Tensor& x) { return torch::mse_loss(x, torch::zeros_like(x)); }},
    {"huber_loss", [](const Tensor& x) { return torch::huber_loss(x, torch::zeros_like(x)); }},
    {"bce_with_logits",
     [](const Tensor& x) {
       return torch::binary_cross_entropy_with_logits(x, torch::ones_like(x.detach()));
     }},
    {"embedding",
     [](const Tensor& x) {
       return torch::embedding(x.reshape({-1, 6}), torch::tensor({1, 3, 3, 0}).to(x.device()));
     }},
    {"grid_sample",
     [](const Tensor& x) {
       return F::grid_sample(x, values(x, {2, 3, 3, 2}),
                             F::GridSampleFuncOptions().align_corners(false));
     }},
    {"unfold_fold",
     [](const Tensor& x) {
       return F::unfold(x, F::UnfoldFuncOptions({2, 2}));
     }},
    {"attention",
     [](const Tensor& x) { return torch::scaled_dot_product_attention(x, x, x, {}, 0.0, true); }},
    {"attention_with_mask",
     [](const Tensor& x) {
       const Tensor mask = torch::zeros({6, 6}, x.options())
                               .masked_fill_(torch::eye(6, x.options().dtype(at::kBool)), -1e9);
       return torch::scaled_dot_product_attention(x, x, x, mask);
     }},
    {"lstm",
     [](const Tensor& x) {
       torch::manual_seed(8);
       torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 5).num_layers(2));
       lstm->to(x.device());
       return std::get<0>(lstm(x.flatten(0, 1)));
     },
     1e-5},
    {"gru",
     [](const Tensor& x) {
       torch::manual_seed(8);
       torch::nn::GRU gru(torch::nn::GRUOptions(6, 5).bidirectional(true));
       gru->to(x.device());
       return std::get<0>(gru(x.flatten(0, 1)));
     },
     1e-5},
    {"lstm_packed",
     [](const Tensor& x) {
       torch::manual_seed(8);
       torch::nn::LSTM lstm(6, 5);
       lstm->to(x.device());
       const auto packed =
           torch::nn::utils::rnn::pack_padded_sequence(x[0], torch::tensor({4, 4, 3, 2, 2, 1}));
       return std::get<0>(torch::nn::utils::rnn::pad_packed_sequence(
           std::get<0>(lstm->forward_with_packed_input(packed))));
     },
     1e-5},
    {"multihead_attention",
     [](const Tensor& x) {
       torch::manual_seed(8);
       torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(6, 2));
       attention->to(x.device());
       const auto tokens = x.flatten(0, 1);
       return std::get<0>(attention(tokens, tokens, tokens));
     },
     1e-5},
};
INSTANTIATE_TEST_SUITE_P(Neural, OperatorTest, ::testing::ValuesIn(neural),
                         [](const auto& info) { return info.param.name; });

const OperatorCase general[] = {
    {"add_mul_div", [](const Tensor& x) { return (x + 1) * x / 3 - x.mean(); }},
    {"reductions",
     [](const Tensor& x) { return x.sum(1) + x.amax(1) + x.std(1) + x.norm() + x.prod(1); }},
    {"cat_stack",
     [](const Tensor& x) {
       return torch::cat({x, torch::stack({x[0], x[1]})}, 2);
     }},
    {"slice_select", [](const Tensor& x) { return x.slice(2, 1, 5, 2).select(1, 2); }},
    {"permute_reshape",
     [](const Tensor& x) {
       return x.permute({2, 0, 3, 1}).reshape({36, 8});
     }},
    {"index",
     [](const Tensor& x) {
       return x.index({torch::tensor({1, 0}).to(x.device()), torch::tensor({2, 3})});
     }},
    {"index_put", [](const Tensor& x) { return x.clone().index_put_({x > 0.5}, 3); }},
    {"masked_fill_where",
     [](const Tensor& x) { return torch::where(x > 0, x, x.masked_fill(x < -1, 4)); }},
    {"gather_sort", [](const Tensor& x) { return x.gather(3, std::get<1>(x.sort(3))); }},
    {"scatter",
     [](const Tensor& x) { return torch::zeros_like(x).scatter(3, std::get<1>(x.sort(3)), x); }},
    {"topk_cumsum", [](const Tensor& x) { return std::get<0>(x.topk(3)).cumsum(1); }},
    {"einsum_bmm",
     [](const Tensor& x) {
       return torch::einsum("bcij,bcjk->bcik", {x, x});
     }},
    {"inverse",
     [](const Tensor& x) {
       return torch::inverse(x[0][0].mm(x[0][0].t()) + torch::eye(6, x.options()));
     }},
    {"cholesky",
     [](const Tensor& x) {
       return at::linalg_cholesky(x[0][0].mm(x[0][0].t()) + torch::eye(6, x.options()));
     }},
    {"fft", [](const Tensor& x) { return at::view_as_real(torch::fft_fft(x)).contiguous(); }},
    {"cdist", [](const Tensor& x) { return torch::cdist(x, x.flip(2)); }},
    {"type_changes",
     [](const Tensor& x) { return x.to(torch::kDouble).to(torch::kBFloat16).to(torch::kFloat); }},
    {"in_place_slices",
     [](const Tensor& x) {
       auto y = x.clone();
       y.select(1, 0).mul_(2);
       y.narrow(2, 1, 3).add_(x.narrow(2, 0, 3));
       return y;
     }},
    {"foreach",
     [](const Tensor& x) {
       return torch::stack(torch::_foreach_norm(torch::_foreach_mul({x[0], x[1]}, 2)));
     }},
    {"double_backward",
     [](const Tensor& x) {
       const auto y = torch::conv2d(x, values(x, {3, 4, 3, 3})).pow(3).sum();
       return torch::autograd::grad({y}, {x}, {}, true, true)[0];
     }},
    {"factories",
     [](const Tensor& x) {
       const auto options = x.options().requires_grad(false);
       return torch::arange(5, options) + torch::linspace(0, 1, 5, options) +
              torch::full({5}, 3, options) + torch::eye(5, options)[1] +
              torch::hann_window(5, options) + torch::zeros_like(x).sum() +
              torch::tensor({1.F, 2.F, 3.F, 4.F, 5.F}, options) + torch::scalar_tensor(1, options) +
              torch::tril_indices(3, 2, 0, options.dtype(torch::kLong))[0].to(torch::kFloat);
     }},
};
INSTANTIATE_TEST_SUITE_P(General, OperatorTest, ::testing::ValuesIn(general),
                         [](const auto& info) { return info.param.name; });

TEST(OperatorsTest, LowPrecisionTypesWork) {
  for (const auto type : {torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    const auto x = torch::randn({1, 4, 9, 9}, on_virtual(0).dtype(type)).requires_grad_();
    torch::conv2d(x, torch::randn({4, 4, 3, 3}, on_virtual(0).dtype(type))).relu().sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), type);
  }
}

TEST(OperatorsTest, AutocastLowersAndRaisesPrecision) {
  const auto device = virtual_device(0);
  at::autocast::set_autocast_enabled(device.type(), true);
  at::autocast::set_autocast_dtype(device.type(), torch::kBFloat16);
  const auto x = torch::randn({4, 4}, on_virtual(0).requires_grad(true));
  const auto product = x.mm(x);
  const auto probabilities = product.softmax(1);
  const auto sum = probabilities + product;
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device.type(), false);
  EXPECT_EQ(product.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(probabilities.scalar_type(), torch::kFloat);
  sum.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), torch::kFloat);
  const auto host = x.detach().cpu().to(torch::kBFloat16);
  EXPECT_TRUE(same_bits(product, host.mm(host)));
}

TEST(OperatorsTest, GradientsAreClippedAndUnscaled) {
  const auto parameter = torch::ones({3}, on_virtual(0).requires_grad(true));
  parameter.sum().backward();
  torch::nn::utils::clip_grad_norm_({parameter}, 0.1);
  EXPECT_NEAR(parameter.grad().norm().item<float>(), 0.1, 1e-5);
  std::vector<Tensor> gradients{torch::full({3}, 8.F, on_virtual(0))};
  auto found = torch::zeros({}, on_virtual(0));
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found,
                                                 torch::full({}, 0.5F, on_virtual(0)));
  EXPECT_EQ(gradients[0].sum().item<float>(), 12);
  EXPECT_EQ(found.item<float>(), 0);
}

TEST(OperatorsTest, TensorsAreSavedLoadedAndPrinted) {
  const auto tensor = torch::randn({4}, on_virtual(0));
  std::stringstream file, printed;
  torch::save(tensor.cpu(), file);
  Tensor loaded;
  torch::load(loaded, file, virtual_device(1));
  EXPECT_EQ(loaded.device(), virtual_device(1));
  EXPECT_TRUE(same_bits(loaded, tensor));
  printed << tensor;
  EXPECT_NE(printed.str().find("virtualFloatType"), std::string::npos) << printed.str();
}

TEST(OperatorsTest, ModulesMoveAndStayLeaves) {
  torch::nn::Linear linear(3, 2);
  linear->to(virtual_device(0));
  EXPECT_TRUE(linear->weight.is_leaf() && linear->weight.requires_grad());
  EXPECT_EQ(linear->weight.device(), virtual_device(0));
  linear->to(at::kCPU);
  EXPECT_TRUE(linear->weight.is_cpu());
}

TEST(OperatorsTest, HostValuesAreRight) {
  const auto tensor = torch::ones({5}, on_virtual(0));
  EXPECT_EQ(tensor.sum().item<float>(), 5);
  EXPECT_TRUE(torch::equal(tensor, tensor.clone()));
  EXPECT_TRUE(tensor.allclose(tensor));
  EXPECT_TRUE(tensor.any().item<bool>());
  EXPECT_EQ(tensor.nonzero().device(), virtual_device(0));
}

}  // namespace
}  // namespace trestle
