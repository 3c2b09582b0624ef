// The plans that trestle's models come with.
#include "tests/tensor_parallel/compare_split.h"
#include "trestle/models/model.h"
#include "trestle/models/resnet.h"
#include "trestle/models/toy.h"
#include "trestle/models/unet.h"
#include "trestle/models/unet3d.h"

namespace trestle::tensor_parallel {
namespace {

using namespace trestle::testing::comparing;

TEST(ModelPlans, UNetEqualsThePlainModel) {
  const InDouble in_double;
  for (const bool bilinear : {false, true}) {
    const models::UNetOptions options{.width = 4, .bilinear = bilinear};
    compare([=] { return models::unet(options); }, models::unet_plan(options), 2,
            random({2, 3, 18, 16}, 2));
  }
}

TEST(ModelPlans, ResNetEqualsThePlainModelInOneLayerABlockAndInMany) {
  const InDouble in_double;
  const models::ResNetOptions options{.width = 4};
  for (const auto net : {&models::resnet18, &models::resnet18_flat})
    compare([=] { return net(options); }, models::resnet18_plan(), 2, random({2, 1, 28, 28}, 2));
}

// Every model by name has a plan, but for transformers, whose layers are made split.
TEST(ModelPlans, EachModelComesWithOne) {
  const InDouble in_double;
  const auto input_of = [](const std::string& name) {
    if (name == "unet") return random({2, 3, 18, 16}, 2);
    if (name == "unet3d") return random({2, 1, 16, 16, 16}, 2);
    if (name == "resnet50") return random({4, 3, 64, 64}, 2);
    if (name.starts_with("resnet18")) return random({2, 1, 28, 28}, 2);
    return random({3, name == "toy" ? 12 : 10}, 2);
  };
  for (const std::string& name : models::model_names()) {
    SCOPED_TRACE(name);
    models::ModelOptions options{.name = name, .width = 6};
    const Rules rules = models::split_plan(options);
    const bool is_transformer = name == "gpt2" || name == "llama";
    EXPECT_EQ(rules.empty(), is_transformer);
    if (is_transformer) continue;
    // The masks of the toy's dropout come from a generator that threads share.
    compare([=] { return models::make_model(options); }, rules, 2, input_of(name),
            name == "toy" ? Mode::Evaluate : Mode::Train);
  }
}

TEST(ModelPlans, ThoseOfUNetsWithoutTransposedConvolutionsAndOfDeepMlpsFit) {
  const InDouble in_double;
  const models::UNet3dOptions unet{
      .width = 4, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 2}}, .trilinear = true};
  compare([=] { return models::unet3d(unet); }, models::unet3d_plan(unet), 2,
          random({2, 1, 5, 8, 8}, 2));
  for (const int depth : {1, 2, 3}) {
    const models::MlpOptions mlp{.width = 7, .depth = depth};
    compare([=] { return models::mlp(mlp); }, models::mlp_plan(mlp), 2, random({3, 10}, 2));
  }
}

}  // namespace
}  // namespace trestle::tensor_parallel
