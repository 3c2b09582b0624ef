// DataLoader, DataParallel and Adam: ten epochs over 1,000 samples of 10 numbers. The weights are
// saved as example_model.pth, which Python opens: python data_parallel.py --open example_model.pth
//
//     survey_data_parallel [--out FOLDER] [--precision bf16]
#include "examples/survey/survey.h"

#include <filesystem>

namespace {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(10, 50));
    out = register_module("out", torch::nn::Linear(50, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden = nullptr, out = nullptr;
};
TORCH_MODULE(Net);

void train(const survey::Arguments& arguments) {
  const auto devices = trestle::parse_devices("virtual:2");  // "cuda:all" with GPUs
  Net net;
  survey::set_weights(*net);
  // [loop]
  const auto data = std::make_shared<trestle::data::TensorDataset>(
      std::vector{survey::samples({1000, 10}, 1000), survey::classes({1000}, 2000, 2)});
  // The order of each epoch is that of Python's DistributedSampler for one process.
  const trestle::data::Loader loader(
      data, {.batch = 50, .sampler = trestle::data::DistributedSampler(1000, {.seed = 7})});
  trestle::DataParallel parallel(net, devices);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  for (int epoch = 0; epoch < 10; ++epoch) {
    double sum = 0;
    for (trestle::data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const trestle::precision::Autocast autocast(arguments.precision);
        const at::Tensor output = parallel(batch.inputs);
        loss = torch::cross_entropy_loss(output, batch.targets.to(output.device()));
      }
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
    }
    survey::print_loss(epoch, sum / static_cast<double>(loader.batches()));
  }
  trestle::NamedTensors weights;
  for (const auto& parameter : net->named_parameters())
    weights.emplace_back(parameter.key(), parameter.value());
  trestle::checkpoint::write_weights(std::filesystem::path(arguments.out) / "example_model.pth",
                                     weights);
  // [loop]
}

}  // namespace

int main(int argc, char** argv) { return survey::run(argc, argv, train); }
