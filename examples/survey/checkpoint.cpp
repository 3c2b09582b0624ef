// checkpoint(): the activations of two blocks are not stored, the backward recomputes them.
//
//     survey_checkpoint [--precision bf16]
#include "examples/survey/survey.h"

namespace {

// [net]
struct NetImpl : torch::nn::Module {
  NetImpl() {
    block1 = register_module("block1", make_block());
    block2 = register_module("block2", make_block());
    head = register_module("head", torch::nn::Linear(128, 10));
  }
  static torch::nn::Sequential make_block() {
    return torch::nn::Sequential(torch::nn::Linear(128, 256), torch::nn::ReLU(),
                                 torch::nn::Linear(256, 128));
  }
  at::Tensor forward(at::Tensor x) {
    x = trestle::nn::checkpoint(block1, x);
    x = trestle::nn::checkpoint(block2, x);
    return head(x);
  }
  torch::nn::Sequential block1{nullptr}, block2{nullptr};
  torch::nn::Linear head{nullptr};
};
// [net]

void train(const survey::Arguments& arguments) {
  const std::int64_t batch = arguments.full ? 512 : 32;
  NetImpl net;
  survey::set_weights(net);
  torch::optim::SGD optimizer(net.parameters(), 0.05);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = survey::samples({batch, 128}, 1000 + step);
    const at::Tensor y = survey::classes({batch}, 2000 + step, 10);
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const trestle::precision::Autocast autocast(arguments.precision);
      loss = torch::cross_entropy_loss(net.forward(x), y);
    }
    loss.backward();
    optimizer.step();
    survey::print_loss(step, loss.item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) { return survey::run(argc, argv, train); }
