#include <trestle/trestle.h>

#include <cstdio>

// A user-defined data set, read by trestle's loader: points of the plane and their sums.
class Sums : public trestle::data::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  trestle::data::Sample get(std::int64_t index) const override {
    const double x = static_cast<double>(index % 8) / 8;
    const double y = static_cast<double>(index / 8) / 8;
    return {.input = torch::tensor({x, y}, torch::kFloat),
            .target = torch::tensor({x + y}, torch::kFloat)};
  }
};

int main() {
  namespace data = trestle::data;
  using namespace trestle::literals;
  trestle::nn::Layers net;
  net.add("in", torch::nn::Linear(2, 8));
  net.add("relu", torch::nn::ReLU());
  net.add("out", torch::nn::Linear(8, 1));
  trestle::Pipeline pipeline(net,
                             {.devices = trestle::virtual_devices(2, 64_MiB), .balance = {2, 1}});
  torch::optim::SGD optimizer(pipeline.parameters(), 0.1);

  const auto sums = std::make_shared<Sums>();
  const data::Split split = data::random_split(sums->size(), /*fraction=*/0.25, /*seed=*/42);
  const data::Loader loader(sums, split.train,
                            {.batch = 16, .order = data::Order::Shuffled, .seed = 42});
  double first = 0;
  double last = 0;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    double sum = 0;
    for (data::Batch& batch : loader.epoch(epoch)) {
      pipeline.zero_grad();
      sum += pipeline.step(batch.inputs, batch.targets, trestle::nn::mean_squared_error()).loss;
      optimizer.step();
    }
    last = sum / static_cast<double>(loader.batches());
    if (epoch == 0) first = last;
  }
  std::printf("%lld examples; loss %.4f, then %.4f\n", static_cast<long long>(loader.examples()),
              first, last);
  return loader.examples() == 48 && last < first / 2 ? 0 : 1;
}
