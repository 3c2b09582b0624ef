#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/megatron/example_flags.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/megatron/known_flags.h"
#include "trestle/megatron/to_recipe.h"

namespace trestle::megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The message for the smallest flags and these.
std::string refusal(const std::string& more, int ranks = 0) {
  return support::message_of<UsageError>([&] { to_recipe(smallest_flags + more, ranks); });
}

TEST(MegatronRefusals, NameUnknownFlagsWithTheNearest) {
  EXPECT_THAT(refusal("--num-layer 3"),
              HasSubstr("line 1: unknown flag '--num-layer'; did you mean "
                        "'--num-layers'?"));
  EXPECT_THAT(refusal("--clip_grad 1"), HasSubstr("did you mean '--clip-grad'?"));
  EXPECT_THAT(refusal("--colour blue"),
              AllOf(HasSubstr("unknown flag '--colour'"), Not(HasSubstr("did you mean"))));
}

TEST(MegatronRefusals, ListAllFaultsAtOnce) {
  EXPECT_THAT(
      refusal("--seqlen 3 --num-experts 8 --bf16 yes --seed x --fp8-format hybrid --bf16"),
      AllOf(HasSubstr("unknown flag '--seqlen'"), HasSubstr("--num-experts: there are no"),
            HasSubstr("--bf16 takes no value, and 'yes' follows it"),
            HasSubstr("--seed must be an integer from 0 to 1000000000, not 'x'"),
            HasSubstr("--fp8-format: the narrowest types"), HasSubstr("--bf16 is given twice")));
}

TEST(MegatronRefusals, NameMissingFlags) {
  EXPECT_THAT(
      support::message_of<UsageError>([] { to_recipe("--bf16"); }),
      AllOf(HasSubstr("--num-layers is missing"), HasSubstr("--hidden-size is missing"),
            HasSubstr("--num-attention-heads is missing"), HasSubstr("--seq-length is missing"),
            HasSubstr("--lr is missing"), HasSubstr("--max-position-embeddings is missing"),
            HasSubstr("--micro-batch-size is missing"), HasSubstr("--train-iters is missing")));
}

TEST(MegatronRefusals, ExplainVariablesAndLostValues) {
  EXPECT_THAT(refusal("--seed $SEED"), HasSubstr("a variable of the shell has no value here"));
  EXPECT_THAT(refusal("--seed --bf16"), HasSubstr("--seed has no value"));
  EXPECT_THAT(refusal("--seed 1 2"), HasSubstr("--seed takes one value, and 2 follow it: '1 2'"));
  EXPECT_THAT(refusal("--seed 1 \\ \n"),
              HasSubstr("a backslash with a space behind it does not continue a line"));
}

TEST(MegatronRefusals, GiveTheNumbersThatWouldDivide) {
  EXPECT_THAT(refusal("--tensor-model-parallel-size 3"),
              HasSubstr("--tensor-model-parallel-size 3 does not divide --num-attention-heads 4, "
                        "which 1, 2, 4 divide"));
  EXPECT_THAT(refusal("--pipeline-model-parallel-size 3"),
              HasSubstr("--pipeline-model-parallel-size 1, 2, 4 divide them"));
  EXPECT_THAT(refusal("--global-batch-size 7"),
              HasSubstr("--global-batch-size 7 is no multiple of --micro-batch-size 2 x 1 "
                        "data-parallel rank = 2: the nearest sizes are 6 and 8"));
  EXPECT_THAT(refusal("--global-batch-size 4", 4), HasSubstr("the least size is 8"));
  EXPECT_THAT(refusal("--tensor-model-parallel-size 4", 6),
              HasSubstr("the nearest numbers of ranks are 4 and 8"));
  EXPECT_THAT(refusal("--decoder-first-pipeline-num-layers 2"),
              HasSubstr("name 2 of --num-layers 4 for all stages of "
                        "--pipeline-model-parallel-size 1: name all layers, or give more stages"));
  EXPECT_THAT(
      refusal("--decoder-first-pipeline-num-layers 1 --pipeline-model-parallel-size 3"),
      HasSubstr("--num-layers 4: the first and last stage leave 3 for 2 other stages, which "
                "need a multiple of 2"));
  EXPECT_THAT(refusal("--group-query-attention --num-query-groups 2"),
              HasSubstr("2 groups of 4 heads: GPT-2 has a head of keys for each of queries"));
  EXPECT_THAT(refusal("--kv-channels 8"),
              HasSubstr("--kv-channels 8: the 4 heads of a GPT-2 share --hidden-size 64"));
  EXPECT_THAT(refusal("--padded-vocab-size 50000"),
              HasSubstr("--padded-vocab-size 50000 is less than the 50257 tokens"));
  EXPECT_THAT(refusal("--group-query-attention --num-query-groups 3"),
              HasSubstr("--num-query-groups 3 does not divide --num-attention-heads 4"));
  EXPECT_THAT(refusal("--sequence-parallel --tensor-model-parallel-size 4 --ffn-hidden-size 6"),
              HasSubstr("does not divide --ffn-hidden-size 6, which 1, 2, 3, 6 divide"));
}

// Another text must not be trained on in silence.
TEST(MegatronRefusals, RefuseTextsWhosePathGivesNoName) {
  for (const char* path : {"'../a b'",
                           "donn\xc3\xa9"
                           "es/r\xc3\xa9sum\xc3\xa9s_text_document",
                           "'data/pl#ays_text_document'", "'plays;'", "texts/", ".._document"})
    EXPECT_THAT(refusal(std::string("--data-path ") + path),
                HasSubstr("takes its name from the path's last part, which must be letters"))
        << path;
}

TEST(MegatronRefusals, RefuseModelsBetweenGpt2AndLlama) {
  EXPECT_THAT(refusal("--swiglu --normalization RMSNorm"),
              HasSubstr("Llama has --normalization RMSNorm, --swiglu, and also "
                        "--position-embedding-type rope, --disable-bias-linear"));
}

TEST(MegatronRefusals, RefuseContradictions) {
  EXPECT_THAT(refusal("--bf16 --fp16"), HasSubstr("--bf16 and --fp16 are both given"));
  EXPECT_THAT(refusal("--train-samples 1000"), HasSubstr("are both given"));
  EXPECT_THAT(refusal("--lr-warmup-iters 3 --lr-warmup-fraction .1"), HasSubstr("both given"));
  EXPECT_THAT(refusal("--lr-warmup-iters 100"), HasSubstr("leaves none of the 100 steps"));
  EXPECT_THAT(refusal("--min-lr 1"), HasSubstr("--min-lr 1 is above --lr 0.001"));
  EXPECT_THAT(refusal("--save a --load b"), HasSubstr("Megatron-LM's checkpoints are not read"));
  EXPECT_THAT(refusal("--nproc_per_node 8 --nnodes 2", 8),
              HasSubstr("--ranks 8 contradicts --nproc_per_node x --nnodes, which is 16"));
  EXPECT_THAT(refusal("--initial-loss-scale 1000 --fp16"), HasSubstr("512 and 1024"));
  EXPECT_THAT(refusal("--recompute-granularity full"), HasSubstr("needs --recompute-method"));
  const std::string distribute = "--distribute-saved-activations ";
  EXPECT_THAT(refusal(distribute), AllOf(HasSubstr("needs --recompute-granularity full"),
                                         HasSubstr("needs --tensor-model-parallel-size above 1")));
  EXPECT_THAT(refusal(distribute + "--sequence-parallel --tensor-model-parallel-size 2"),
              HasSubstr("does not work with --sequence-parallel"));
}

TEST(MegatronRefusals, RefuseEveryFlagThatChangesNumbers) {
  for (const KnownFlag& known : known_flags()) {
    if (known.kind != KnownFlag::Kind::Refused) continue;
    EXPECT_THAT(refusal(std::string(known.name) + " 1"),
                HasSubstr(std::string(known.name) + ": " + std::string(known.reason)));
  }
  EXPECT_THAT(refusal("--num-layers-per-virtual-pipeline-stage 2"),
              HasSubstr("needs --pipeline-model-parallel-size above 1"));
  EXPECT_THAT(refusal("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3"),
              HasSubstr("3 x --pipeline-model-parallel-size 2 does not divide --num-layers"));
  EXPECT_THAT(refusal("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
                      "--num-virtual-stages-per-pipeline-rank 2"),
              HasSubstr("give one of them"));
  EXPECT_THAT(refusal("--moe-router-topk 2"), HasSubstr("there are no mixtures of experts"));
  EXPECT_THAT(refusal("--context-parallel-size 2"), HasSubstr("--context-parallel-size: a row"));
}

}  // namespace
}  // namespace trestle::megatron
