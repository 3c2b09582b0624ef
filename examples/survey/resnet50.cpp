// ResNet-50 in two parts, trained by a loop of the program's own: forward, loss, backward, step.
// This is PyTorch's tutorial on model parallelism (docs/model_parallel_tutorial.md); its batches
// are 120 images of 3 x 128 x 128 (--full).
//
//     survey_resnet50 [--full] [--precision bf16]
#include "examples/survey/survey.h"

namespace {

void train(const survey::Arguments& arguments) {
  const std::int64_t batch = arguments.full ? 120 : 8, side = arguments.full ? 128 : 64;
  // Small batches amplify rounding: at 0.001 Python's own losses with one and two threads differ by
  // 1.3e-3 after two steps.
  const double rate = arguments.full ? 0.001 : 0.00001;
  const auto devices = trestle::virtual_devices(2);
  trestle::nn::Layers net = trestle::models::resnet50();
  survey::set_weights(net.named_parameters());
  // [loop]
  trestle::Pipeline pipeline(net, {.devices = devices,
                                   .balance = {11, 11},  // up to layer2; layer3, layer4, fc
                                   .numerics = {.precision = arguments.precision}});
  torch::optim::SGD optimizer(pipeline.parameters(), rate);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor images = survey::samples({batch, 3, side, side}, 1000 + step);
    const at::Tensor labels = at::one_hot(survey::classes({batch}, 2000 + step, 1000), 1000);
    optimizer.zero_grad();
    const at::Tensor output = pipeline.forward(images).to(at::kFloat);
    const at::Tensor loss = torch::mse_loss(output, labels.to(output.options()));
    loss.backward();
    optimizer.step();
    survey::print_loss(step, loss.item<double>());
  }
  // [loop]
}

}  // namespace

int main(int argc, char** argv) { return survey::run(argc, argv, train); }
