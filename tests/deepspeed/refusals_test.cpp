#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include "tests/deepspeed/config_files.h"
#include "trestle/base/files.h"

namespace trestle::deepspeed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct BatchRow {
  const char* given;
  int ranks;
  std::int64_t train, micro, accumulate;  // 0: rejected
  const char* message = "";
};

TEST(DeepspeedConfig, DerivesOrRejectsBatchSizes) {
  const BatchRow rows[] = {
      {R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2)",
       4, 64, 8, 2},
      {R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2)",
       4, 0, 0, 0,
       "ds_config.json: train_batch_size 64 is not train_micro_batch_size_per_gpu 4 x "
       "gradient_accumulation_steps 2 x 4 ranks = 32. Change one of them, or leave one out."},
      {R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 8)", 4, 64, 8, 2},
      {R"("train_batch_size": 60, "train_micro_batch_size_per_gpu": 8)", 4, 0, 0, 0,
       "train_batch_size 60 is not a multiple of train_micro_batch_size_per_gpu 8 x 4 ranks = 32, "
       "so gradient_accumulation_steps cannot be computed"},
      {R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 8)", 2, 0, 0, 0, "= 16"},
      {R"("train_batch_size": 64, "gradient_accumulation_steps": 2)", 4, 64, 8, 2},
      {R"("train_batch_size": 64, "gradient_accumulation_steps": 3)", 4, 0, 0, 0,
       "is not a multiple of gradient_accumulation_steps 3 x 4 ranks = 12, so "
       "train_micro_batch_size_per_gpu cannot be computed"},
      {R"("train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2)", 4, 64, 8, 2},
      {R"("train_batch_size": 64)", 4, 64, 16, 1},
      {R"("train_batch_size": 63)", 4, 0, 0, 0, "train_batch_size 63 is not a multiple of 4 ranks"},
      {R"("train_batch_size": 3)", 4, 0, 0, 0, "is not a multiple"},
      {R"("train_micro_batch_size_per_gpu": 8)", 4, 32, 8, 1},
      {R"("gradient_accumulation_steps": 2)", 4, 0, 0, 0,
       "neither train_batch_size nor train_micro_batch_size_per_gpu is given"},
      {"", 4, 0, 0, 0, "neither"},
      {R"("train_batch_size": 0)", 1, 0, 0, 0, "an integer of at least 1, not 0"},
      {R"("train_micro_batch_size_per_gpu": -8)", 1, 0, 0, 0, "from 1 to 1000000, not -8"},
      {R"("train_batch_size": 6.4e1, "train_micro_batch_size_per_gpu": null)", 1, 64, 64, 1},
  };
  for (const BatchRow& row : rows) {
    const std::string json = "{" + std::string(row.given) + "}";
    if (row.train == 0) {
      EXPECT_THAT(config_error(json, row.ranks), HasSubstr(row.message)) << json;
      continue;
    }
    const DeepspeedConfig config = parse(json, row.ranks);
    EXPECT_EQ(config.train_batch, row.train) << json;
    EXPECT_EQ(config.micro_batch, row.micro) << json;
    EXPECT_EQ(config.accumulate, row.accumulate) << json;
  }
}

struct Refusal {
  std::string json;
  const char* message;
};

TEST(DeepspeedConfig, RejectsWithFileAndReason) {
  const Refusal refusals[] = {
      {with(R"("zero_optimisation": {})"),
       "ds_config.json: unknown key 'zero_optimisation'; did you mean 'zero_optimization'?"},
      {zero(R"("stge": 2)"), "unknown key 'stge' in zero_optimization; did you mean 'stage'?"},
      {zero(R"("offload_optimizer": {"devise": "cpu"})"),
       "'devise' in zero_optimization.offload_optimizer; did you mean 'device'?"},
      {with(R"("qqqqqqqq": 1)"), "unknown key 'qqqqqqqq'; known are train_batch_size, "},
      {zero(R"("stage": "2")"),
       R"('stage' in zero_optimization must be an integer from 0 to 3, not "2")"},
      {zero(R"("stage": 4)"), "from 0 to 3, not 4"},
      {zero(R"("stage": 1.5)"), "from 0 to 3, not 1.5"},
      {zero(R"("stage": true)"), "from 0 to 3, not true"},
      {zero(R"("reduce_bucket_size": 1e300)"), "not 1e+300"},
      {zero(R"("reduce_bucket_size": 18446744073709551615)"), "not 18446744073709551615"},
      {zero(R"("overlap_comm": 1)"),
       "'overlap_comm' in zero_optimization must be true or false, not 1"},
      {zero(R"("contiguous_gradients": "yes")"), "true or false"},
      {zero(R"("stage": "auto")"), "\"auto\", which only Hugging Face's Trainer fills in"},
      {with(R"("fp16": {"enabled": "auto"})"), "'enabled' in fp16 is \"auto\""},
      {with(R"("fp16": "auto")"), "'fp16' is \"auto\""},
      {with(R"("fp16": true)"), "'fp16' must be an object, { ... }, not true"},
      {with(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})"), "both enabled"},
      {with(R"("fp16": {"initial_scale_power": 2, "min_loss_scale": 8})"), "2^2 = 4"},
      {with(R"("fp16": {"fp16_master_weights_and_grads": true})"),
       "keeps weights in fp32. Leave it out."},
      {with(R"("gradient_clipping": -1)"), "a number of at least 0, not -1"},
      {with(R"("communication_data_type": "int8")"), "one of fp32, fp16, bf16, not \"int8\""},
      {with(R"("sparse_gradients": true)"), "dense"},
      {with(R"("amp": {"enabled": true})"),
       "'amp' is a feature of DeepSpeed that trestle does not have"},
      {zero(R"("zero_quantized_weights": true)"), "quantize"},
      {zero(R"("zero_hpz_partition_size": 2)"), "second partition"},
      {zero(R"("stage": 2, "offload_optimizer": {"device": "nvme"})"),
       "only. Write \"cpu\": the shards and the optimizer's state are in CPU memory then."},
      {zero(R"("stage": 0, "offload_optimizer": {"device": "cpu"})"), "stage of at least 1"},
      {zero(R"("stage": 2, "offload_param": {"device": "cpu"})"), "needs stage 3"},
      {zero(R"("stage": 2, "mics_shard_size": 1)"), "needs stage 3"},
      {zero(R"("stage": 3, "mics_shard_size": 3)"), "3 does not divide the 1 ranks"},
      {optimizer("Lamb", ""), "trestle has no optimizer \"Lamb\". Known are Adam, "},
      {optimizer("Adm", ""), "did you mean 'Adam'?"},
      {optimizer("AdamW", R"("learning_rate": 1)"),
       "unknown key 'learning_rate' in optimizer.params"},
      {optimizer("AdamW", R"("lr": "auto")"), "'lr' in optimizer.params is \"auto\""},
      {optimizer("AdamW", R"("betas": [0.9])"), "a list of two numbers from 0 to 1, not [0.9]"},
      {optimizer("AdamW", R"("betas": [0.9, 1])"), "below 1"},
      {optimizer("AdamW", R"("bias_correction": false)"), "corrects"},
      {optimizer("AdamW", R"("max_grad_norm": 1.0)"), "'gradient_clipping'"},
      {optimizer("SGD", R"("dampening": 0.5)"), "dampening"},
      {optimizer("SGD", R"("nesterov": true)"), "momentum"},
      {with(R"("optimizer": {"type": null})"), "'optimizer' has no 'type'"},
      {with(R"("optimizer": {"type": ""})"), "'optimizer' has no 'type'"},
      {with(R"("bf16": {"enabled": true}, "bfloat16": {"enabled": false})"),
       "are the same section"},
      {zero(R"("stage": 1, "cpu_offload": true, "offload_optimizer": {})"), "old name of"},
      {with(R"("optimizer": {"params": {}})"), "'optimizer' has no 'type'"},
      {scheduler("WarmupDecayLR", ""),
       "'total_num_steps' is missing in scheduler.params of WarmupDecayLR"},
      {scheduler("OneCycle", R"("cycle_min_lr": 0)"), "'cycle_max_lr' is missing"},
      {scheduler("WarmUp", ""), "unknown scheduler \"WarmUp\"; did you mean 'WarmupLR'?"},
      {scheduler("WarmupLR", R"("warmup_type": "cubic")"), "one of log, linear"},
      {scheduler("WarmupLR", R"("warmup_num_steps": 0)"), "at least 1"},
      {with(
           R"("optimizer": {"type": "Adam", "params": {"lr": 3e-4}}, "scheduler": {"type": "WarmupLR"})"),
       "uses 0.001, later versions use the optimizer's lr, 0.0003. Add it to the file."},
      {R"({"train_batch_size": 8, "train_batch_size": 8})",
       "ds_config.json: the key \"train_batch_size\" occurs twice"},
      {R"({"train_batch_size": 8,})", "ds_config.json: not JSON: parse error at line 1, column 24"},
      {"[1]", "the file must be an object, { ... }, not [1]"},
      {"", "not JSON"},
      {R"({"x": )" + std::string(40, '[') + std::string(40, ']') + "}", "32 levels"},
      {"{\"a\\u001b[31m\": 1}", "unknown key 'a\\u001b[31m'"},
  };
  for (const Refusal& refusal : refusals)
    EXPECT_THAT(config_error(refusal.json),
                AllOf(HasSubstr("ds_config.json"), HasSubstr(refusal.message)))
        << refusal.json;
}

TEST(DeepspeedConfig, RefusalsNameNearestFeature) {
  const Refusal refusals[] = {
      {zero(R"("zero_quantized_weights": true)"),
       R"((ZeRO++). Leave it out. Nearest: "bf16": {"enabled": true} all-gathers 16 bits)"},
      {zero(R"("zero_quantized_gradients": true)"),
       R"(Nearest: "communication_data_type": "bf16" reduces 16 bits)"},
      {zero(R"("zero_hpz_partition_size": 8)"), R"(Nearest: "mics_shard_size" with the same)"},
      {zero(R"("stage": 3, "offload_param": {"device": "nvme"})"), "nvme (ZeRO-Infinity), but"},
      {optimizer("OneBitAdam", ""),
       R"(Nearest: "Adam"; "communication_data_type": "bf16" halves what is sent)"},
      {optimizer("ZeroOneAdam", ""), R"(Nearest: "Adam"; )"},
      {optimizer("OneBitLamb", ""), R"(Nearest: "Adam"; )"},
      {optimizer("Lamb", ""), R"(Nearest: "AdamW" with the scheduler WarmupLR)"},
      {optimizer("Adagrad", ""), R"(Nearest: "RMSprop".)"},
      {with(R"("amp": {"enabled": true})"), R"(Nearest: "bf16" or "fp16": {"enabled": true}.)"},
      {with(R"("pipeline": {"stages": 2})"), "Nearest: trestle train --mesh pipeline=N"},
      {with(R"("gradient_clipping": "auto")"),
       "Write the value of the Trainer's max_grad_norm, or leave the key out."},
      {optimizer("AdamW", R"("lr": "auto")"), "the value of the Trainer's learning_rate"},
      {zero(R"("stage": "auto")"), "Write the value, or leave the key out."},
      {R"({"train_batch_size": "auto"})",
       "Write the Trainer's per_device_train_batch_size x gradient_accumulation_steps x ranks"},
  };
  for (const Refusal& refusal : refusals)
    EXPECT_THAT(config_error(refusal.json), HasSubstr(refusal.message)) << refusal.json;
}

TEST(DeepspeedConfig, ReportsContradictingBatchSizesOnce) {
  EXPECT_EQ(config_error(R"({"train_batch_size": 20, "train_micro_batch_size_per_gpu": 4,
                           "gradient_accumulation_steps": 2})",
                         2),
            "ds_config.json: train_batch_size 20 is not train_micro_batch_size_per_gpu 4 x "
            "gradient_accumulation_steps 2 x 2 ranks = 16. Change one of them, or leave one out.");
}

TEST(DeepspeedConfig, RejectsAZeroByte) {
  using namespace std::string_literals;
  EXPECT_THAT(config_error("{\"train_batch_size\": 20}\0, \"fp16\": {\"enabled\": true}}"s, 1),
              HasSubstr("ds_config.json: not JSON: byte 25 is zero"));
  EXPECT_THAT(config_error("{\0}\0"s, 1), HasSubstr("if it is UTF-16"));
}

TEST(DeepspeedConfig, EndsEachSentenceOnce) {
  EXPECT_THAT(config_error(R"({"train_batch_size": 20, "optimizer": {"type": "Adm"}})", 1),
              HasSubstr("did you mean 'Adam'? Known are Adam, "));
  EXPECT_THAT(config_error(R"({"train_batch_size": 20, "scheduler": {"type": "Warmup"}})", 1),
              HasSubstr("did you mean 'WarmupLR'? Known are WarmupLR, "));
  EXPECT_THAT(config_error(R"({"train_batch_size": 20, "optimizer": {"type": "Zzzzzzzzzz"}})", 1),
              HasSubstr("unknown optimizer \"Zzzzzzzzzz\". Known are Adam, "));
}

TEST(DeepspeedConfig, ReportsAllProblemsAtOnce) {
  const std::string message = config_error(
      R"({"train_batch": 8, "zero_optimization": {"stage": 7, "overlap": true}, "fp16": {"enabled": 1}})");
  EXPECT_THAT(message, AllOf(HasSubstr("'train_batch'"), HasSubstr("not 7"), HasSubstr("'overlap'"),
                             HasSubstr("'enabled'"), HasSubstr("neither train_batch_size")));
}

TEST(DeepspeedConfig, RejectsMissingFilesAndInvalidRanks) {
  EXPECT_THROW(read_deepspeed_config("no/such/ds_config.json", 1), UsageError);
  EXPECT_THROW(read_deepspeed_config(std::filesystem::temp_directory_path(), 1), UsageError);
  EXPECT_THAT(config_error(with(""), 0), HasSubstr("0 ranks"));
  EXPECT_THAT(config_error(with(""), 2'000'000), HasSubstr("2000000 ranks"));
  const auto file = std::filesystem::temp_directory_path() /
                    ("trestle_deepspeed_config_" + std::to_string(::getpid()) + ".json");
  write_file(file, stage_2);
  EXPECT_EQ(read_deepspeed_config(file, 2).micro_batch, 32);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace trestle::deepspeed
