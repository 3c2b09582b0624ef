#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WeightsVerb : public ProgramTest {
 protected:
  // Runs a program in the Python of tools/setup.sh --tests, in the folder.
  static void python(const std::string& program) {
    write_file(folder_ / "program.py", program);
    const std::string command =
        text("cd '", folder_.string(), "' && '", TRESTLE_PYTHON, "' program.py");
    EXPECT_EQ(std::system(command.c_str()), 0) << program;
  }
};

// From a run to Python, and from Python to another run.
TEST_F(WeightsVerb, ExportsToPythonAndReadsBack) {
  ASSERT_EQ(run({"train", "small.toml", "--epochs", "1", "--quiet"}).code, 0);
  const Finished exported = run({"export", "runs/small", "--out", "small.pt"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, AllOf(HasSubstr("wrote 118 tensors"),
                                  HasSubstr("of runs/small/best.safetensors to small.pt")));
  ASSERT_EQ(
      run({"export", "runs/small", "--out", "small.safetensors", "--names", "pytorch_unet"}).code,
      0);
  ASSERT_EQ(run({"export", "runs/small", "--out", "many", "--max-file-size", "20KiB"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "many/model.safetensors.index.json"));
  ASSERT_EQ(run({"export", "many", "--out", "back_from_many.pt"}).code, 0);
  EXPECT_EQ(run({"export", "runs/small", "--out", "many", "--max-file-size", "20KiB"}).code, 2);
  python(R"(
import torch
from safetensors.torch import load_file, save_file

one, many = (torch.load(name, weights_only=True) for name in ("small.pt", "back_from_many.pt"))
assert one.keys() == many.keys() and all(torch.equal(one[k], many[k]) for k in one)

ours = torch.load("small.pt", weights_only=True)
theirs = load_file("small.safetensors")
assert len(ours) == len(theirs) == 118
assert torch.equal(ours["up4_conv.norm2.running_var"], theirs["up4.conv.double_conv.4.running_var"])
torch.save({"epoch": 1, "model_state_dict": {f"module.{k}": 2 * v for k, v in theirs.items()}}, "twice.pt")
save_file({k: v for k, v in ours.items() if k != "out.bias"}, "no_bias.safetensors")
)");
  const Finished trained =
      run({"train", "small.toml", "--weights", "twice.pt", "--name", "from_python", "--epochs", "1",
           "--learning_rate", "0", "--momentum", "0"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out,
              HasSubstr("weights   twice.pt: 118 tensors, under Pytorch-UNet's names"));
  ASSERT_EQ(run({"export", "runs/from_python/last", "--out", "back.pt"}).code, 0);
  python(R"(
import torch

ours, back = (torch.load(name, weights_only=True) for name in ("small.pt", "back.pt"))
assert torch.equal(2 * ours["up1_t.weight"], back["up1_t.weight"])
)");

  const Finished refused = run({"train", "small.toml", "--weights", "no_bias.safetensors"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("no_bias.safetensors"), HasSubstr("'out.bias' [2]"),
                                 HasSubstr("weights_strict = false")));
  const Finished some = run({"train", "small.toml", "--weights", "no_bias.safetensors",
                             "--weights-strict", "false", "--epochs", "1"});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.out, HasSubstr("missing in the file (1): 'out.bias' [2]"));
}

TEST_F(WeightsVerb, RefusesInvalidRequests) {
  EXPECT_EQ(run({"train", "small.toml", "--weights", "nowhere.pt"}).code, 2);
  EXPECT_EQ(run({"export", "runs/nowhere", "--out", "a.pt"}).code, 2);
  EXPECT_EQ(run({"export", "small.toml", "--out", "a.pt"}).code, 1);
  const Finished folder = run({"export", "small.toml", "--out", "nowhere/a.pt"});
  EXPECT_EQ(folder.code, 2);
  EXPECT_THAT(folder.err, HasSubstr("there is no folder 'nowhere'"));
  EXPECT_EQ(run({"export", "small.toml", "--out", "a.bin"}).code, 2);
  EXPECT_THAT(run({"export", "--help"}).out, HasSubstr("Examples:\n  trestle export"));
}

}  // namespace
}  // namespace trestle
