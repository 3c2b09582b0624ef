// Checkpoints of tensor ranks hold whole tensors: every mesh reads what another one saved, to the
// bit.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/models/tiny_transformers.h"
#include "tests/sharding/scratch_folder.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/state.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/sharding/save/save.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Mesh {
  int pipeline = 1, shard = 1, tensor = 1;
  ShardLevel level = ShardLevel::None;
  std::int64_t multiple = 1;  // of the vocabulary's rows
  bool sequence = false;

  int ranks() const { return pipeline * shard * tensor; }
  std::string name() const {
    return text(pipeline, "x", shard, "x", tensor, "_", to_string(level), "_", multiple,
                sequence ? "_sequence" : "");
  }
};

const std::vector<Mesh> meshes = {
    {},
    {.tensor = 2, .multiple = 8},
    {.tensor = 4, .sequence = true},
    {.pipeline = 2, .tensor = 2, .multiple = 16},
    {.shard = 2, .tensor = 2, .level = ShardLevel::Parameters},
    {.pipeline = 2, .shard = 2, .tensor = 2, .level = ShardLevel::OptimizerState, .multiple = 8}};

struct Training {
  bool llama = true;
  std::string optimizer = "adamw";
};

// One rank of a training.
class Rank {
 public:
  Rank(World& world, const Mesh& given, const Training& run, std::uint64_t seed,
       std::int64_t vocabulary = 43)
      : group_(world.group()),
        mesh_(world, given.shard > 1 ? std::vector<mesh::Dimension>{{"pipeline", given.pipeline},
                                                                    {"shard", given.shard},
                                                                    {"tensor", given.tensor}}
                                     : std::vector<mesh::Dimension>{{"pipeline", given.pipeline},
                                                                    {"tensor", given.tensor}}),
        ranks_(mesh_) {
    models::TransformerConfig config = run.llama ? models::tiny_llama() : models::tiny_gpt2();
    config.vocabulary = vocabulary;
    config.vocabulary_multiple = given.multiple;
    const checkpoint::RowCounts rows{.saved = vocabulary, .in_model = models::table_rows(config)};
    padding_ = {{"embed.tokens", rows}, {"head.weight", rows}};
    ParallelOptions options{.tensor_ranks = ranks_, .level = given.level};
    if (given.pipeline == 2) options.options.balance = {2, 3};
    parallel_.emplace(
        models::transformer(
            config, {.seed = seed, .tensor = {.ranks = ranks_, .sequence = given.sequence}}),
        mesh_, options);
    for (const auto& [name, parameter] : parallel_->named_parameters()) names_.push_back(name);
    optimizer_ = optim::make_optimizer(
        parallel_->parameters(), {.name = run.optimizer, .learning_rate = 0.1, .momentum = 0.9});
  }

  void train(int steps) {
    const std::int64_t share = 4 / parallel_->replicas();
    for (int step = 0; step < steps; ++step) {
      parallel_->zero_grad();
      const at::Tensor ids = (torch::arange(4 * 7) * (37 + step) % 43)
                                 .view({4, 7})
                                 .narrow(0, share * parallel_->replica(), share);
      parallel_->step(ids.narrow(1, 0, 6), ids.narrow(1, 1, 6), nn::token_cross_entropy());
      optimizer_->step();
      if (ShardedParameters* const own = sharded()) own->shards_changed();
    }
  }

  void save(const fs::path& folder) {
    const checkpoint::SaveRanks ranks{
        .rank = group_.rank(),
        .size = group_.size(),
        .all_gather = [this](const std::string& mine) { return group_.all_gather_bytes(mine); }};
    if (ShardedParameters* const own = sharded())
      return checkpoint::write_training_checkpoint(
          folder, sharding::groups_to_save(*own, optimizer_.get(), {}), {}, ranks, padding_,
          parallel_->rank_slices());
    checkpoint::write_training_checkpoint(
        folder,
        {.weights = parallel_->named_parameters(),
         .optimizer = optim::optimizer_state(*optimizer_, names_)},
        ranks, padding_, parallel_->rank_slices());
  }

  void load(const fs::path& folder) {
    const checkpoint::SavedTraining saved(folder, padding_, parallel_->rank_slices().parameters);
    constexpr auto others = checkpoint::SurplusTensors::Ignored;
    if (ShardedParameters* const own = sharded())
      return sharding::stage_load(saved, *own, optimizer_.get(), others)();
    const auto weights = saved.stage_weights(parallel_->named_parameters(), others);
    optim::load_optimizer_state(*optimizer_, names_, saved.optimizer(names_));
    weights.write();
  }

 private:
  ShardedParameters* sharded() { return parallel_->sharded(mesh_.coordinate("pipeline")); }

  comm::Group group_;
  DeviceMesh mesh_;
  tensor_parallel::TensorRanks ranks_;
  checkpoint::PaddedRows padding_;
  std::optional<Parallel> parallel_;
  std::vector<std::string> names_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

void save_trained(const Mesh& given, const Training& run, const fs::path& folder) {
  spawn(given.ranks(), [&](World& world) {
    Rank rank(world, given, run, 42);
    rank.train(2);
    rank.save(folder);
  });
}

// Each tensor by name, whole and without padding.
std::map<std::string, at::Tensor> tensors_of(const fs::path& folder) {
  const auto saved = checkpoint::read_training_checkpoint(folder);
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : saved.weights) all["weight of " + name] = tensor;
  for (const auto& [name, tensor] : saved.optimizer) all[name] = tensor;
  return all;
}

TEST(TensorCheckpoint, EveryMeshReadsWhatEveryOtherSavedToTheBit) {
  const ScratchFolder scratch;
  for (const Training& run : {Training{}, Training{.llama = false, .optimizer = "sgd"}}) {
    std::map<std::string, at::Tensor> of_plain;
    for (const Mesh& from : meshes) {
      const fs::path folder = scratch.path(run.optimizer + from.name());
      save_trained(from, run, folder);
      const auto saved = tensors_of(folder);
      if (of_plain.empty()) of_plain = saved;
      ASSERT_EQ(saved.size(), of_plain.size()) << from.name();
      for (const auto& [name, tensor] : saved) {
        ASSERT_TRUE(of_plain.contains(name)) << name << ", saved on " << from.name();
        EXPECT_EQ(tensor.sizes(), of_plain.at(name).sizes()) << name;
      }
      for (const Mesh& to : meshes) {
        SCOPED_TRACE(text(run.optimizer, " from ", from.name(), " to ", to.name()));
        const fs::path again = scratch.path("again");
        spawn(to.ranks(), [&](World& world) {
          Rank rank(world, to, run, 7);  // other weights
          rank.train(1);                 // and another state
          rank.load(folder);
          rank.save(again);
        });
        const auto read = tensors_of(again);
        ASSERT_EQ(read.size(), saved.size());
        for (const auto& [name, tensor] : read)
          EXPECT_TRUE(at::equal(tensor, saved.at(name))) << name;
      }
    }
  }
}

TEST(TensorCheckpoint, MissingAndDamagedFilesAreReportedOnEveryRank) {
  const ScratchFolder scratch;
  const Mesh mesh = {.tensor = 2};
  save_trained(mesh, {}, scratch.path("whole"));
  const auto refusal = [&](const std::string& name) {
    std::string message;
    spawn(2, [&](World& world) {
      Rank rank(world, mesh, {}, 7);
      const std::string own = support::message_of([&] { rank.load(scratch.path(name)); });
      if (world.rank() == 0) message = own;
      EXPECT_THAT(own, HasSubstr("safetensors")) << "rank " << world.rank();
    });
    return message;
  };
  int files = 0;
  for (const auto& entry : fs::directory_iterator(scratch.path("whole"))) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".safetensors")) continue;
    ++files;
    for (const bool cut : {false, true}) {
      const std::string name = file + (cut ? "_cut" : "_missing");
      fs::copy(scratch.path("whole"), scratch.path(name), fs::copy_options::recursive);
      const fs::path changed = scratch.path(name) / file;
      if (cut)
        fs::resize_file(changed, fs::file_size(changed) / 2);
      else
        fs::remove(changed);
      EXPECT_THAT(refusal(name), HasSubstr(file));
    }
  }
  EXPECT_EQ(files, 4) << "weights and optimizer of two ranks";
}

TEST(TensorCheckpoint, AnotherVocabularyIsRefusedWithBothShapes) {
  const ScratchFolder scratch;
  const Mesh mesh = {.tensor = 2, .multiple = 8};
  save_trained(mesh, {}, scratch.path("saved"));
  spawn(2, [&](World& world) {
    Rank rank(world, mesh, {}, 7, 42);
    EXPECT_THAT(support::message_of<FormatError>([&] { rank.load(scratch.path("saved")); }),
                HasSubstr("embed.tokens"))
        << "rank " << world.rank();
  });
}

}  // namespace
}  // namespace trestle::testing
