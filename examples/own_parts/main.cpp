// A program with its own model, data set, loss and metric, and every verb of trestle:
//
//     own_parts train spirals.toml
//
// The model learns which of two spirals a point of the plane belongs to.
#include <trestle/trestle.h>

#include <cmath>
#include <memory>

namespace {

namespace data = trestle::data;
namespace nn = trestle::nn;

// Points on two spirals, with a little noise. An example depends only on the seed and its index.
class Spirals : public data::Dataset {
 public:
  explicit Spirals(std::uint64_t seed) : seed_(seed) {}

  std::int64_t size() const override { return 600; }

  data::Sample get(std::int64_t index) const override {
    const auto noise = [&](std::uint64_t axis) {  // from -0.5 to 0.5
      const std::uint64_t mixed =
          (seed_ + 2 * static_cast<std::uint64_t>(index) + axis + 1) * 0x9e3779b97f4a7c15ULL;
      return static_cast<double>(mixed >> 11) * 0x1p-53 - 0.5;
    };
    const std::int64_t spiral = index % 2;
    const double along = static_cast<double>(index) / static_cast<double>(size());
    const double turn = 5 * along + 3.14159265 * static_cast<double>(spiral);
    const double x = along * std::cos(turn) + 0.06 * noise(0);
    const double y = along * std::sin(turn) + 0.06 * noise(1);
    return {.input = torch::tensor({x, y}, torch::kFloat), .target = torch::tensor(spiral)};
  }

 private:
  std::uint64_t seed_;
};

data::OwnData open_spirals(const data::DataOptions& options) {
  return {.training =
              std::make_shared<Spirals>(options.seed)};  // the key 'validation' splits off a share
}

// [model]
nn::Layers make_rings(const trestle::models::ModelOptions& options) {
  const std::int64_t width = options.width > 0 ? options.width : 32;
  nn::Layers net(nn::Seed{options.seed});
  net.add("in", [width] { return torch::nn::Linear(2, width); });
  net.add("wave", [](const at::Tensor& x) { return at::sin(3 * x); }).keep_output("waves");
  net.add("deep", [width] { return torch::nn::Linear(width, width); });
  net.add("add", [](const at::Tensor& x, const at::Tensor& waves) { return at::tanh(x) + waves; })
      .take("waves");
  net.add("out", [width] { return torch::nn::Linear(width, 2); });
  return net;
}
// [model]

// Focal loss: cross-entropy with a lower weight for examples that are already right (Lin et al.
// 2017). It is a mean over examples, so it is additive: it works with every schedule.
nn::Loss focal() {
  return nn::additive("focal", [](const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor of_truth =
        at::log_softmax(output, 1).gather(1, target.unsqueeze(1)).squeeze(1);
    return -((1 - of_truth.exp()).square() * of_truth).mean();
  });
}

// Recall of the second spiral: the share of its points that are found.
nn::Tally recall(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor second = target.eq(1);
  return {.sum = (output.argmax(1).eq(1) & second).sum().item<double>(),
          .count = second.sum().item<double>()};
}

}  // namespace

// [run]
int main(int argc, char** argv) {
  return trestle::run(argc, argv,
                      {.models = {{"rings", make_rings}},
                       .data_sets = {{"spirals", open_spirals}},
                       .losses = {{"focal", focal}},
                       .metrics = {{"recall", recall}}});
}
// [run]
