// Layers that are alike are measured once, with the bytes of those that are measured each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/text.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/train/layers_on_paper.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

recipe::Recipe tiny_gpt(const std::string& checkpoint, const std::string& more) {
  return recipe::parse_recipe(
      text("[model]\nname = \"gpt2\"\nwidth = 16\n[transformer]\nvocabulary = 40\ncontext = 8\n",
           "layers = 4\nheads = 2\n", more, "[data]\nname = \"tokens\"\ntokens = \"none\"\n",
           "row_tokens = 8\ncount = 8\norder = \"random\"\n[pipeline]\ncheckpoint = [",
           checkpoint.empty() ? "" : "\"" + checkpoint + "\"", "]\n[train]\nbatch = 4\n",
           "[devices]\nuse = \"virtual:1x64MiB\"\nthreads = 1\n"),
      "tiny.toml");
}

// Everything but the times.
std::string bytes_of(const plan::LayerProfile& profile) {
  std::string words;
  for (const plan::LayerCost& one : profile.layers)
    words += text(one.name, " ", one.parameters, " ", one.frozen, " ", one.buffers, " ", one.inner,
                  " ", one.transient, " ", one.transient_forward, "\n");
  for (const plan::ValueCost& value : profile.values) {
    std::vector<int> saved = value.saved_by;
    std::ranges::sort(saved);
    words +=
        text(value.from, " ", join(value.to, ","), " ", join(saved, ","), " ", value.bytes, "\n");
  }
  for (const plan::TiedCost& tie : profile.ties)
    words += text(tie.owner, " ", join(tie.users, ","), " ", tie.bytes, "\n");
  return words;
}

TEST(KnownLayers, HaveTheBytesOfEachMeasuredAlone) {
  for (const std::string more : {"", "attention = \"written\"\n", "dropout = 0.1\n"})
    for (const std::string checkpoint : {"", "blocks", "attention"}) {
      const recipe::Recipe recipe = tiny_gpt(checkpoint, more);
      const at::Device device = device_to_measure_on(recipe, planned_devices(recipe.devices.use));
      const LayersOnPaper plain(tiny_gpt("", more), {}, device, nullptr);
      const LayersOnPaper layers(recipe, {}, device, nullptr, &plain);
      const plan::LayerProfile shared = layers.costs(recipe, {{device, 0}}).profile;
      const plan::LayerProfile each =
          profile_layers(graph_of_training(recipe, layers.model()),
                         {layers.data().example.expand({4, -1}).clone()}, device);
      EXPECT_EQ(bytes_of(shared), bytes_of(each)) << more << checkpoint;
      for (std::size_t i = 0; i < shared.layers.size(); ++i)
        EXPECT_GT(shared.layers[i].forward, 0) << i;
    }
}

}  // namespace
}  // namespace trestle::train
