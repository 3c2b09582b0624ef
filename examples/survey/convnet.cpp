// Model parallelism: a convolutional net in two parts, each on its own device. The survey's input
// is 16 x 3 x 224 x 224 (--full); without it the images are smaller.
//
//     survey_convnet [--full] [--precision bf16]
//     python convnet.py [--full] [--precision bf16]
#include "examples/survey/survey.h"

namespace {

// [net]
trestle::nn::Layers make_net(std::int64_t side) {
  trestle::nn::Layers net;
  // Part 1, on the first device.
  net.add("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)));
  net.add("relu1", torch::nn::ReLU());
  net.add("pool1", torch::nn::MaxPool2d(2));
  // Part 2, on the second.
  net.add("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 128, 3).padding(1)));
  net.add("relu2", torch::nn::ReLU());
  net.add("pool2", torch::nn::MaxPool2d(2));
  net.add("flatten", torch::nn::Flatten());
  net.add("fc", torch::nn::Linear(128 * (side / 4) * (side / 4), 10));
  return net;
}
// [net]

void train(const survey::Arguments& arguments) {
  const std::int64_t batch = arguments.full ? 16 : 4, side = arguments.full ? 224 : 32;
  trestle::nn::Layers net = make_net(side);
  survey::set_weights(net.named_parameters());
  // [loop]
  trestle::Pipeline pipeline(net, {.devices = trestle::virtual_devices(2),
                                   .balance = {3, 5},
                                   .numerics = {.precision = arguments.precision}});
  torch::optim::SGD optimizer(pipeline.parameters(), 1e-4);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor images = survey::samples({batch, 3, side, side}, 1000 + step);
    const at::Tensor targets = survey::classes({batch}, 2000 + step, 10);
    optimizer.zero_grad();
    const double loss = pipeline.step(images, targets, trestle::nn::cross_entropy()).loss;
    optimizer.step();
    survey::print_loss(step, loss);
  }
  // [loop]
}

}  // namespace

int main(int argc, char** argv) { return survey::run(argc, argv, train); }
