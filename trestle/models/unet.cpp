#include "trestle/models/unet.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::models {

namespace {

torch::nn::Conv2d conv3x3(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

// (3x3 convolution, batch norm, ReLU) twice.
struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(std::int64_t in, std::int64_t middle, std::int64_t out)
      : conv1(register_module("conv1", conv3x3(in, middle))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(middle))),
        conv2(register_module("conv2", conv3x3(middle, out))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(out))) {}

  // In place, because batch norm does not need its output again: a quarter less memory.
  at::Tensor forward(const at::Tensor& x) { return norm2(conv2(norm1(conv1(x)).relu_())).relu_(); }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
};

auto double_conv(std::int64_t in, std::int64_t middle, std::int64_t out) {
  return [=] { return std::make_shared<DoubleConvImpl>(in, middle, out); };
}

struct DownImpl : DoubleConvImpl {
  DownImpl(std::int64_t in, std::int64_t out) : DoubleConvImpl(in, out, out) {}
  at::Tensor forward(const at::Tensor& x) { return DoubleConvImpl::forward(at::max_pool2d(x, 2)); }
};

at::Tensor pass_through(const at::Tensor& x) { return x; }

at::Tensor upsample(const at::Tensor& x) {
  return at::upsample_bilinear2d(x, {2 * x.size(2), 2 * x.size(3)}, /*align_corners=*/true);
}

at::Tensor pad_and_join(const at::Tensor& x, const at::Tensor& skip) {
  const std::int64_t rows = skip.size(2) - x.size(2);
  const std::int64_t columns = skip.size(3) - x.size(3);
  if (rows == 0 && columns == 0) return at::cat({skip, x}, 1);
  const at::Tensor padded =
      at::constant_pad_nd(x, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
  return at::cat({skip, padded}, 1);
}

}  // namespace

nn::Layers unet(const UNetOptions& options) {
  const std::int64_t w = options.width;
  if (w < 1 || options.in_channels < 1 || options.classes < 1 || (options.bilinear && w % 2 != 0)) {
    throw UsageError(text("a U-Net of width ", w, ", ", options.in_channels, " input channels and ",
                          options.classes, " classes cannot be built"),
                     {.hint = "All must be positive, and the width even with 'bilinear'."});
  }
  nn::Layers net(nn::Seed{options.seed});
  net.add("in", double_conv(options.in_channels, w, w));
  std::int64_t channels = w;
  for (int level = 1; level <= 4; ++level) {
    net.add(text("cat", level), pass_through).keep_output(text("skip", level));
    // Without a transposed convolution nothing halves the channels, so the deepest level has the
    // same number of channels as the level above.
    const std::int64_t out = options.bilinear && level == 4 ? channels : 2 * channels;
    net.add(text("down", level), [=] { return std::make_shared<DownImpl>(channels, out); });
    channels = out;
  }
  for (int step = 1; step <= 4; ++step) {
    const std::int64_t skip = w << (4 - step);  // channels of the concatenated skip
    const std::string name = text("up", step);
    if (options.bilinear) {
      net.add(name + "_t", upsample);
      // The reference program's widths, which differ from those of the best known U-Net.
      const std::int64_t out = step == 4 ? w : skip / 2;
      const std::int64_t middle = step == 4 ? w : out / 2;
      net.add(name + "_pop", pad_and_join).take(text("skip", 5 - step));
      net.add(name + "_conv", double_conv(channels + skip, middle, out));
      channels = out;
    } else {
      net.add(name + "_t", [=] {
        return torch::nn::ConvTranspose2d(
            torch::nn::ConvTranspose2dOptions(channels, channels / 2, 2).stride(2));
      });
      net.add(name + "_pop", pad_and_join).take(text("skip", 5 - step));
      net.add(name + "_conv", double_conv(channels / 2 + skip, skip, skip));
      channels = skip;
    }
  }
  net.add("out", [=, classes = options.classes] {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, classes, 1));
  });
  return net;
}

}  // namespace trestle::models
