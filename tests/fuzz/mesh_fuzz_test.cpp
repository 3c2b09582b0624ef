#include "tests/fuzz/fuzz.h"
#include "trestle/mesh/layout/mesh_layout.h"

namespace trestle {
namespace {

TEST(Fuzz, Meshes) {
  const auto result = fuzz::run({"replicate=2,shard=4", "pipeline=2,replicate=2,shard=3", "a=1"},
                                [](std::string_view words) {
                                  const mesh::MeshLayout layout = mesh::parse_mesh(words);
                                  EXPECT_EQ(mesh::parse_mesh(layout.to_text()), layout) << words;
                                  if (layout.size() > 1000) return;
                                  EXPECT_FALSE(layout.picture().empty());
                                });
  EXPECT_GT(result.accepted, 1000);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle
