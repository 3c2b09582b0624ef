// Checkpoints of DeepSpeed 0.19.8, and its losses (tools/golden/make_deepspeed_goldens.py).
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/deepspeed/nets.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/files/train_state.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/sharding/save/save.h"

namespace trestle::deepspeed {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path goldens = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden";
constexpr int before = 3, after = 2, examples = 16;

Weights tensors_of(const fs::path& file) {
  const NamedTensors named = checkpoint::read_weights(file).tensors;
  return {named.begin(), named.end()};
}

// A folder of tests/golden: what Python's program trained, and how.
struct Golden {
  std::string kind, precision;  // "deepspeed_frozen", "bf16"
  int stage = 0;

  bool is_frozen() const { return kind == "deepspeed_frozen"; }
  bool has_groups() const { return kind == "deepspeed_groups"; }
  std::string name() const { return text(precision, "_zero", stage); }
  fs::path folder() const { return goldens / kind / name(); }
  Weights reference() const { return tensors_of(folder() / "reference.safetensors"); }
  double tolerance() const { return precision == "fp32" ? 1e-5 : 1e-2; }
};

std::vector<Golden> all_of(const std::vector<const char*>& kinds) {
  std::vector<Golden> all;
  for (const char* const kind : kinds)
    for (const char* const precision : {"fp32", "bf16"})
      for (int stage = 0; stage < 4; ++stage) {
        const Golden golden{kind, precision, stage};
        if (fs::exists(golden.folder())) all.push_back(golden);
      }
  return all;
}

// The net of the Python program, with its names.
struct ProgramNetImpl : torch::nn::Module {
  explicit ProgramNetImpl(const Golden& golden) {
    if (golden.has_groups()) scale = register_parameter("scale", torch::ones(1));
    in = register_module("0", torch::nn::Linear(6, 5));
    out = register_module("2", torch::nn::Linear(5, 3));
    if (golden.precision == "fp32")
      batch_norm = register_module("3", torch::nn::BatchNorm1d(3));
    else
      layer_norm = register_module("3", torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
    if (!golden.is_frozen()) return;
    in->bias.requires_grad_(false);
    out->weight.requires_grad_(false);
    torch::nn::Module& norm = *named_children()["3"];
    if (golden.stage < 3) norm.register_parameter("none", torch::empty({0, 4}));
    norm.register_parameter("shared", out->bias);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = out(torch::gelu(in(x)));
    y = batch_norm ? batch_norm(y) : layer_norm(y);
    return scale.defined() ? y * scale : y;
  }
  at::Tensor scale;
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
};

using ProgramEngine = ModuleEngine<ProgramNetImpl>;

// The groups of the Python program. Shards are flat, so that the names tell.
std::unique_ptr<torch::optim::Optimizer> grouped_adamw(const NamedTensors& named) {
  std::vector<std::vector<at::Tensor>> tensors(3);
  for (const auto& [name, tensor] : named)
    tensors[name == "scale"                            ? 2
            : name == "0.weight" || name == "2.weight" ? 0
                                                       : 1]
        .push_back(tensor);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& group : tensors)
    groups.emplace_back(
        group, std::make_unique<torch::optim::AdamWOptions>(
                   torch::optim::AdamWOptions(1e-2).weight_decay(groups.empty() ? 0.1 : 0.0)));
  return std::make_unique<torch::optim::AdamW>(groups);
}

class Program {
 public:
  explicit Program(Golden golden)
      : golden_(std::move(golden)),
        tensors_(tensors_of(goldens / "deepspeed/program.safetensors")) {}

  // An engine with the weights of libtorch's own initialization.
  ProgramEngine engine(World& world, int stage) const {
    return {std::make_shared<ProgramNetImpl>(golden_), world, config(stage, world.size()),
            options()};
  }
  // With the initial weights of the Python program.
  ProgramEngine engine_from_start(World& world, int stage) const {
    const auto net = std::make_shared<ProgramNetImpl>(golden_);
    {
      const at::NoGradGuard no_grad;
      for (auto& item : net->named_parameters())
        if (const auto found = tensors_.find(golden_.precision + "." + item.key());
            found != tensors_.end())
          item.value().copy_(found->second);
    }
    return {net, world, config(stage, world.size()), options()};
  }
  // This rank's share of the batch. Returns its loss.
  double step(ProgramEngine& engine, int number) const {
    const std::int64_t share = examples / engine.world_size();
    const auto mine = [&](const char* name) {
      return tensors_.at(name)[number].narrow(0, engine.global_rank() * share, share);
    };
    const at::Tensor loss = F::cross_entropy(engine(mine("x")).to(at::kFloat), mine("y"));
    engine.backward(loss);
    engine.step();
    return loss.item<double>();
  }

  DeepspeedConfig config(int stage, int ranks) const {
    return parse_deepspeed_config(
        text(R"({"train_batch_size": 16, "zero_optimization": {"stage": )", stage,
             golden_.has_groups() ? R"(, "sub_group_size": 4)" : "", R"(}, "gradient_clipping": 0.5,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": true}},
                "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0,
                    "warmup_max_lr": 1e-2, "warmup_num_steps": 10}})",
             golden_.precision == "bf16" ? R"(, "bf16": {"enabled": true}})" : "}"),
        "ds_config.json", ranks);
  }

 private:
  InitializeOptions options() const {
    InitializeOptions options;
    if (golden_.has_groups()) options.optimizer = grouped_adamw;
    return options;
  }

  Golden golden_;
  Weights tensors_;
};

// The mean of all ranks' losses, for each step.
std::vector<double> mean(const std::vector<std::vector<double>>& of_ranks) {
  std::vector<double> all(of_ranks[0].size());
  for (const auto& losses : of_ranks)
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] += losses[i] / static_cast<double>(of_ranks.size());
  return all;
}

class DeepspeedFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("deepspeed_folders_", ::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// Compares tensors with Python's. Returns the number of those that Python has too.
std::size_t expect_same_bits(const NamedTensors& tensors, const Weights& expected,
                             const std::string& where) {
  std::size_t compared = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!expected.contains(name)) continue;
    EXPECT_TRUE(torch::equal(tensor.to(expected.at(name).scalar_type()), expected.at(name)))
        << where << ": " << name;
    compared += 1;
  }
  return compared;
}

TEST_F(DeepspeedFolders, LossesEqualDeepspeedsAtEveryStage) {
  for (const Golden& golden : all_of({"deepspeed", "deepspeed_frozen"})) {
    const Program program(golden);
    const auto losses = mean(spawn(2, [&](World& world) {
      ProgramEngine engine = program.engine_from_start(world, golden.stage);
      std::vector<double> all;
      for (int step = 0; step < before + after; ++step) all.push_back(program.step(engine, step));
      return all;
    }));
    const at::Tensor expected = golden.reference().at("losses");
    for (int step = 0; step < before + after; ++step) {
      const double theirs = expected[step].item<double>();
      EXPECT_NEAR(losses[static_cast<std::size_t>(step)], theirs, golden.tolerance() * theirs)
          << golden.folder() << ", step " << step;
    }
  }
}

// Every folder, into every stage, at several numbers of ranks: all bits of the weights and of the
// optimizer's state.
TEST_F(DeepspeedFolders, AreLoadedAtAnyStageAndNumberOfRanks) {
  for (const Golden& golden : all_of({"deepspeed", "deepspeed_frozen", "deepspeed_groups"})) {
    const Program program(golden);
    const Weights expected = golden.reference();
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 1}, {4, 2}, {2, 3}}) {
      const fs::path again = folder_ / text(golden.kind, golden.name(), ranks, stage);
      spawn(ranks, [&, stage = stage](World& world) {
        ProgramEngine engine = program.engine(world, stage);
        const auto loaded = engine.load_checkpoint(golden.folder());
        ASSERT_TRUE(loaded);
        EXPECT_EQ(loaded->client_state, (std::map<std::string, double>{{"epoch", 7}}));
        EXPECT_EQ(engine.global_steps(), before);
        save(again, engine.sharded(), engine.optimizer());
      });
      const checkpoint::CheckpointFolder saved(again);
      const std::string where = text(golden.folder().string(), " at stage ", stage);
      EXPECT_EQ(expect_same_bits(saved.read("weights"), expected, where) +
                    expect_same_bits(saved.read("optimizer"), expected, where),
                expected.size() - 1)
          << where << ": all but the losses";
    }
  }
}

TEST_F(DeepspeedFolders, TrainingContinuesWithDeepspeedsLosses) {
  for (const Golden& golden : all_of({"deepspeed", "deepspeed_frozen", "deepspeed_groups"})) {
    const Program program(golden);
    const auto losses = mean(spawn(2, [&](World& world) {
      ProgramEngine engine = program.engine(world, 3 - golden.stage);
      engine.load_checkpoint(golden.folder(), "global_step3");
      std::vector<double> all;
      for (int step = 0; step < after; ++step) all.push_back(program.step(engine, before + step));
      return all;
    }));
    const at::Tensor expected = golden.reference().at("losses");
    for (int step = 0; step < after; ++step) {
      const double theirs = expected[before + step].item<double>();
      EXPECT_NEAR(losses[static_cast<std::size_t>(step)], theirs, golden.tolerance() * theirs)
          << golden.folder() << ", step " << before + step;
    }
  }
}

// Loads each folder and saves it again in DeepSpeed's form: its files equal DeepSpeed's own. With
// TRESTLE_DEEPSPEED_OUT=FOLDER the folders stay there, for a real DeepSpeed
// (tools/golden/check_deepspeed_resume.py).
TEST_F(DeepspeedFolders, SavedOnesEqualDeepspeedsOwn) {
  const char* const kept = std::getenv("TRESTLE_DEEPSPEED_OUT");
  const fs::path out = kept == nullptr ? folder_ : fs::path(kept);
  for (const Golden& golden : all_of({"deepspeed", "deepspeed_frozen", "deepspeed_groups"})) {
    const Program program(golden);
    const fs::path made = out / golden.kind / golden.name();
    spawn(2, [&](World& world) {
      ProgramEngine engine = program.engine(world, golden.stage);
      engine.load_checkpoint(golden.folder());
      engine.save_checkpoint(made, "", {{"epoch", 7}}, CheckpointForm::Deepspeed);
    });
    EXPECT_EQ(read_file(made / "latest"), "global_step3");
    EXPECT_FALSE(fs::exists(made / "global_step3.trestle"));
  }
  std::string command =
      text("'", TRESTLE_PYTHON, "' '", TRESTLE_SOURCE_DIR, "/tests/deepspeed/compare_folders.py'");
  for (const char* const kind : {"deepspeed", "deepspeed_frozen", "deepspeed_groups"})
    command += text(" '", (goldens / kind).string(), "' '", (out / kind).string(), "'");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

// Any number of ranks loads what another number has saved in DeepSpeed's form.
TEST_F(DeepspeedFolders, SavedOnesAreLoadedAtAnyNumberOfRanks) {
  for (const Golden& golden : all_of({"deepspeed", "deepspeed_frozen", "deepspeed_groups"})) {
    if (golden.precision != "fp32" && !golden.has_groups()) continue;
    const Program program(golden);
    const fs::path made = folder_ / golden.kind / golden.name();
    spawn(4, [&](World& world) {
      ProgramEngine engine = program.engine(world, golden.stage);
      engine.load_checkpoint(golden.folder());
      for (int twice = 0; twice < 2; ++twice)  // it replaces its own
        engine.save_checkpoint(made, "tag", {}, CheckpointForm::Deepspeed);
    });
    const checkpoint::CheckpointFolder saved(made);
    EXPECT_TRUE(saved.is_foreign());
    const Weights expected = golden.reference();
    EXPECT_EQ(expect_same_bits(saved.read("weights"), expected, made.string()) +
                  expect_same_bits(saved.read("optimizer"), expected, made.string()),
              expected.size() - 1);
  }
}

TEST_F(DeepspeedFolders, DeepspeedsFormIsRefusedForWhatItCannotHold) {
  const Program program({"deepspeed", "fp32", 1});
  spawn(2, [&](World& world) {
    const auto save_to = [&](Engine& engine, const std::string& tag) {
      return message_of(
          [&] { engine.save_checkpoint(folder_ / "refused", tag, {}, CheckpointForm::Deepspeed); });
    };
    const std::string keys = "\"train_batch_size\": 12, \"gradient_accumulation_steps\": 2";
    Net accumulating(make_plain_net(), world, config(stage(2) + adamw + keys, 2), {});
    const std::int64_t micro = accumulating.train_micro_batch_size_per_gpu();
    accumulating.backward(
        accumulating(images(0).narrow(0, world.rank() * micro, micro)).to(at::kDouble).sum());
    accumulating.step();
    EXPECT_THAT(save_to(accumulating, ""), HasSubstr("in the middle of a batch"));

    ProgramEngine engine = program.engine(world, 1);
    engine.module()->in->bias.requires_grad_(false);
    EXPECT_THAT(save_to(engine, ""),
                AllOf(HasSubstr("'0.bias'"), HasSubstr("frozen after initialize()")));
    ProgramEngine grouped(std::make_shared<ProgramNetImpl>(Golden{"deepspeed_frozen", "fp32", 0}),
                          world, program.config(0, 2), {.optimizer = grouped_adamw});
    EXPECT_THAT(save_to(grouped, ""), HasSubstr("no place for the frozen parameter '0.bias'"));
    const auto without_last = [](NamedTensors named) {
      named.pop_back();
      return grouped_adamw(named);
    };
    ProgramEngine lacking(std::make_shared<ProgramNetImpl>(Golden{"deepspeed", "fp32", 1}), world,
                          program.config(1, 2), {.optimizer = without_last});
    EXPECT_THAT(save_to(lacking, ""), HasSubstr("'3.bias' is in no group of the optimizer"));

    ProgramEngine other = program.engine(world, 1);
    if (world.rank() == 0) {
      fs::create_directories(folder_ / "refused");
      write_file(folder_ / "refused/tag", "not a folder");
    }
    world.group().barrier();
    EXPECT_THAT(save_to(other, "tag"), HasSubstr("tag"));
  });
}

// There DeepSpeed steps its optimizer once in initialize(), with gradients of 0: the optimizer
// counts one step more than the engine. The bias corrections of the next step need its count.
TEST_F(DeepspeedFolders, Stage0In16BitsCountsTheStepOfInitialize) {
  for (const Golden& golden : all_of({"deepspeed", "deepspeed_frozen", "deepspeed_groups"})) {
    const checkpoint::CheckpointFolder folder(golden.folder());
    const int expected = golden.name() == "bf16_zero0" ? before + 1 : before;
    std::size_t counts = 0;
    for (const auto& [name, tensor] : folder.read("optimizer"))
      if (name.ends_with(".step")) {
        EXPECT_EQ(tensor.item<std::int64_t>(), expected) << golden.folder() << " " << name;
        counts += 1;
      }
    EXPECT_EQ(counts, golden.is_frozen() ? 4u : golden.has_groups() ? 7u : 6u);
    EXPECT_EQ(checkpoint::parse_state(folder.state(), "state").step, before);
  }
}

// Stage 0 does not name the parameters of its optimizer. With 16 bits frozen ones are not among
// them, so that a frozen bias leaves a choice between three tensors of its shape.
TEST_F(DeepspeedFolders, Stage0IsRefusedWhereItsShapesLeaveAChoice) {
  const Golden golden{"deepspeed", "bf16", 0};
  const Program program(golden);
  spawn(1, [&](World& world) {
    const auto net = std::make_shared<ProgramNetImpl>(golden);
    net->out->bias.requires_grad_(false);
    ProgramEngine engine(net, world, program.config(0, 1), {});
    program.step(engine, 0);
    engine.save_checkpoint(folder_ / "choice", "tag", {}, CheckpointForm::Deepspeed);
    EXPECT_THAT(message_of<FormatError>([&] { engine.load_checkpoint(folder_ / "choice"); }),
                AllOf(HasSubstr("mp_rank_00_model_states.pt"),
                      HasSubstr("2 of shape [3] in one group, and the model has 3"),
                      HasSubstr("ZeRO stage 1")));
  });
}

// One rank's file is damaged: no rank's weights change.
TEST_F(DeepspeedFolders, ADamagedFileChangesNoWeight) {
  const Golden golden{"deepspeed", "fp32", 1};
  const Program program(golden);
  fs::copy(golden.folder(), folder_ / "broken", fs::copy_options::recursive);
  const fs::path file = folder_ / "broken/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const at::Tensor last = golden.reference().at("3.bias");
  std::string bytes = read_file(file);
  const std::size_t place =
      bytes.find(std::string(static_cast<const char*>(last.const_data_ptr()) + 4, 4));
  ASSERT_NE(place, std::string::npos);
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  write_file(file, bytes);
  for (const int stage : {0, 1, 3})
    spawn(2, [&](World& world) {
      ProgramEngine engine = program.engine_from_start(world, stage);
      program.step(engine, 0);
      const NamedTensors old = engine.sharded().state();
      Weights copies;
      for (const auto& [name, tensor] : old) copies[name] = tensor.clone();
      EXPECT_THAT(message_of([&] { engine.load_checkpoint(folder_ / "broken"); }),
                  AllOf(HasSubstr("zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                        HasSubstr("differs from the saved one")));
      for (const auto& [name, tensor] : engine.sharded().state())
        EXPECT_TRUE(torch::equal(tensor, copies.at(name))) << "stage " << stage << " " << name;
      EXPECT_EQ(engine.global_steps(), 1);
    });
}

}  // namespace
}  // namespace trestle::deepspeed
