// DeepSpeed's JSON as tutorials print it (deepspeed.json, beside this source): ZeRO-2, Adam and
// fp16. The program starts its two ranks itself; under a launcher each process is one rank.
//
//     survey_deepspeed [FILE]          torchrun --nproc-per-node 2 deepspeed_json.py [FILE]
#include "examples/survey/survey.h"

#include <filesystem>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(10, 50));
    out = register_module("out", torch::nn::Linear(50, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

void train(const survey::Arguments& arguments) {
  const std::filesystem::path beside = std::filesystem::path(__FILE__).replace_extension(".json");
  const std::filesystem::path file =
      arguments.file.empty() ? beside : std::filesystem::path(arguments.file);
  const trestle::World world = trestle::init();
  const auto net = std::make_shared<NetImpl>();
  survey::set_weights(*net);
  // [engine]
  auto engine = trestle::deepspeed::initialize(net, file, world);
  const std::int64_t batch = engine.train_batch_size();
  const std::int64_t mine = engine.train_micro_batch_size_per_gpu();
  for (int step = 0; step < 10; ++step) {
    const std::int64_t first = world.rank() * mine;  // of this rank's share
    const at::Tensor x = survey::samples({batch, 10}, 1000 + step).narrow(0, first, mine);
    const at::Tensor y = survey::classes({batch}, 2000 + step, 2).narrow(0, first, mine);
    const at::Tensor loss = torch::cross_entropy_loss(engine(x).to(at::kFloat), y);
    engine.backward(loss);
    engine.step();
    // [engine]
    at::Tensor mean = loss.detach().clone();
    world.group().all_reduce(mean).wait();
    if (world.rank() == 0) survey::print_loss(step, mean.item<double>() / world.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = trestle::launch::run_as_ranks(2)) return *code;
  return survey::run(argc, argv, train);
}
