// Units inside of a torch module: the weights of the plain module, which is trained by libtorch alone.
#include "trestle/sharding/hooked.h"

#include <gmock/gmock.h>

#include "attack_ranks.h"
#include "trestle/base/error.h"
#include "trestle/nn/layers.h"
#include "trestle/recompute/checkpoint.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

template <class Impl>
using Plain = Impl;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int inner) {
    a = register_module("a", torch::nn::Linear(width, inner));
    b = register_module("b", torch::nn::Linear(inner, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (on_forward) on_forward();
    return x + b(torch::tanh(a(x)));
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
  std::function<void()> on_forward;
};

// Several inputs and outputs, one of which has no gradient.
struct SeveralImpl : torch::nn::Module {
  SeveralImpl() { fc = register_module("fc", torch::nn::Linear(width, 2 * width)); }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x,
                                                          std::optional<at::Tensor> y,
                                                          double scale) {
    const auto halves = fc(x * scale).chunk(2, 1);
    return {halves[0] + (y ? *y : x), {halves[1], halves[1].argmax(1)}};
  }
  torch::nn::Linear fc{nullptr};
};

// Returns what the unit inside of it has made, and has a weight of its own.
template <template <class> class Unit>
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", std::make_shared<Unit<BlockImpl>>(5));
    scale = register_parameter("scale", torch::full({width}, 1.25));
  }
  at::Tensor forward(const at::Tensor& x) const { return inner->forward(x * scale); }
  std::shared_ptr<Unit<BlockImpl>> inner;
  at::Tensor scale;
};

// Units in a Sequential, nested, called twice, in a row and not, tied to one another and to the rest, and frozen.
template <template <class> class Unit>
struct ManyUnits : Model {
  ManyUnits() {
    blocks->push_back("first", std::make_shared<Unit<BlockImpl>>(7));
    blocks->push_back("second", std::make_shared<Unit<BlockImpl>>(4));
    register_module("blocks", blocks);
    several = register_module("several", std::make_shared<Unit<SeveralImpl>>());
    outer = register_module("outer", std::make_shared<Unit<OuterImpl<Unit>>>());
    tied = register_module("tied", std::make_shared<Unit<BlockImpl>>(7));
    frozen = register_module("frozen", std::make_shared<Unit<BlockImpl>>(3));
    head = register_module("head", torch::nn::Linear(7, width));
    to(at::kDouble);
    auto& first = dynamic_cast<BlockImpl&>(*blocks->ptr(0));
    tied->a->replace_parameter("weight", first);
    head->weight = head->replace("weight", first.b->weight);
  }
  at::Tensor forward(const at::Tensor& x) override { return x; }
  torch::nn::Sequential blocks;
  std::shared_ptr<Unit<SeveralImpl>> several;
  std::shared_ptr<Unit<OuterImpl<Unit>>> outer;
  std::shared_ptr<Unit<BlockImpl>> tied, frozen;
  torch::nn::Linear head{nullptr};
};

}  // namespace
}  // namespace trestle
