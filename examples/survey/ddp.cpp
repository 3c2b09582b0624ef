// DistributedDataParallel with its DistributedSampler. The program starts its two ranks itself, as
// torch.multiprocessing.spawn does in Python. Under a launcher each process is one rank:
//
//     survey_ddp                       trestle launch -n 2 -- survey_ddp
//                                      torchrun --no-python --nproc-per-node 2 survey_ddp
#include "examples/survey/survey.h"

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    net1 = register_module("net1", torch::nn::Linear(10, 10));
    net2 = register_module("net2", torch::nn::Linear(10, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return net2(torch::relu(net1(x))); }
  torch::nn::Linear net1{nullptr}, net2{nullptr};
};

void train(const survey::Arguments& arguments) {
  // [rank]
  const trestle::World world = trestle::init();
  const trestle::DeviceMesh mesh(world, {{"replicate", world.size()}});
  const auto data = std::make_shared<trestle::data::TensorDataset>(
      std::vector{survey::samples({1000, 10}, 1000), survey::samples({1000, 5}, 2000)});
  const trestle::data::Loader loader(
      data, {.batch = 20,
             .sampler = trestle::data::DistributedSampler(
                 1000, {.ranks = world.size(), .rank = world.rank(), .seed = 7})});
  const auto net = std::make_shared<NetImpl>();
  survey::set_weights(*net);
  trestle::ShardedModule<NetImpl> model(net, mesh, trestle::ddp());
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int epoch = 0; epoch < 3; ++epoch) {
    at::Tensor sum = torch::zeros({1});
    for (trestle::data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const trestle::precision::Autocast autocast(arguments.precision);
        loss = torch::mse_loss(model.forward(batch.inputs), batch.targets);
      }
      model.backward(loss);
      optimizer.step();
      sum += loss.detach();
    }
    world.group().all_reduce(sum).wait();
    const auto steps = static_cast<double>(loader.batches() * world.size());
    if (world.rank() == 0) survey::print_loss(epoch, sum.item<double>() / steps);
  }
  // [rank]
}

}  // namespace

// [main]
int main(int argc, char** argv) {
  if (const auto code = trestle::launch::run_as_ranks(2)) return *code;
  return survey::run(argc, argv, train);
}
// [main]
