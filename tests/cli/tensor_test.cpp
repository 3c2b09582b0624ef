// `trestle train --mesh tensor=N`: ranks that split the layers of a language model.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/tensor_runs.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/view/chrome_trace.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainTensor : public TensorRuns {};

constexpr const char* all_targets =
    R"(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])";

TEST_F(TrainTensor, MeshesTrainAsOneProcess) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> meshes = {
      {"tensor2", {"--mesh", "tensor=2"}},
      {"tensor4", {"--mesh", "tensor=4", "--sequence-parallel", "true"}},
      {"stages",
       {"--mesh", "pipeline=2,tensor=2", "--checkpoint", "attention", "--balance", "2,3"}},
      {"shares",
       {"--mesh", "pipeline=2,tensor=2", "--checkpoint", "blocks", "--split-recomputed", "true"}},
      {"shards", {"--mesh", "shard=2,tensor=2", "--sequence-parallel", "true"}}};
  for (const auto& [name, flags] : meshes) {
    const Finished finished = train(name, flags);
    ASSERT_EQ(finished.code, 0) << finished.err;
    expect_losses_of_plain_run(name);
  }
}

// A run is saved as whole tensors: any mesh resumes it, and one process reads it.
TEST_F(TrainTensor, RunsResumeOnOtherMeshes) {
  ASSERT_EQ(train("first", {"--mesh", "shard=2,tensor=2", "--epochs", "1"}).code, 0);
  const auto whole = checkpoint::list_weights(folder_ / "runs/first/best.safetensors");
  const auto plain = checkpoint::list_weights(folder_ / "runs/plain/best.safetensors");
  ASSERT_EQ(whole.size(), plain.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto same =
        std::ranges::find_if(plain, [&](const auto& one) { return one.name == whole[i].name; });
    ASSERT_NE(same, plain.end()) << whole[i].name;
    EXPECT_EQ(whole[i].shape, same->shape) << whole[i].name;
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> meshes = {
      {"resumed1", {"--mesh", "tensor=1", "--ranks", "1"}},
      {"resumed2", {"--mesh", "pipeline=2,tensor=2"}},
      {"resumed4", {"--mesh", "tensor=4"}}};
  for (const auto& [name, flags] : meshes) {
    fs::copy(folder_ / "runs/first", folder_ / "runs" / name, fs::copy_options::recursive);
    std::vector<std::string> words = {"train",    "--resume", "runs/" + name,
                                      "--epochs", "2",        "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished finished = run(words);
    ASSERT_EQ(finished.code, 0) << finished.err;
    expect_losses_of_plain_run(name);
  }
}

// Slices are read from public weights; evaluating a split run's file gives its validation loss.
TEST_F(TrainTensor, BeginsWithPublicWeights) {
  ASSERT_EQ(run({"export", "runs/plain", "--out", "public", "--names", "hugging_face"}).code, 0);
  const std::vector<std::string> more = {"--weights", "public/model.safetensors", "--epochs", "1"};
  ASSERT_EQ(train("from_public", more).code, 0);
  std::vector<std::string> split = more;
  split.insert(split.end(), {"--mesh", "tensor=4"});
  const Finished finished = train("split_from_public", split);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto expected = numbers("from_public", "loss"),
             actual = numbers("split_from_public", "loss");
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(expected[i], actual[i], 2e-4) << i;
  EXPECT_LT(actual[0], numbers("plain", "loss")[0] - 0.3) << "the weights were loaded";
}

// Adapters beside int8 matrices, from public weights.
TEST_F(TrainTensor, TrainsAdaptersAsOneProcess) {
  ASSERT_EQ(run({"export", "runs/plain", "--out", "frozen", "--names", "hugging_face"}).code, 0);
  const std::vector<std::string> words = {
      "--weights",         "frozen/model.safetensors",
      "--adapter-rank",    "2",
      "--adapter-alpha",   "32",
      "--adapter-targets", "[\"q_proj\", \"v_proj\", \"down_proj\"]",
      "--frozen-type",     "int8",
      "--adapter-dropout", "0.1"};
  ASSERT_EQ(train("adapters", words).code, 0);
  for (const auto& [name, mesh] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"adapters2", {"--mesh", "tensor=2"}},
           {"adapters4", {"--mesh", "tensor=4", "--sequence-parallel", "true"}},
           {"adapters_stages",
            {"--mesh", "pipeline=2,tensor=2", "--balance", "2,3", "--checkpoint", "blocks"}}}) {
    std::vector<std::string> split = words;
    split.insert(split.end(), mesh.begin(), mesh.end());
    const Finished finished = train(name, split);
    ASSERT_EQ(finished.code, 0) << finished.err;
    expect_losses_of("adapters", name, 2e-3);  // the head is bf16
  }
}

// The messages stand in both timelines, and the prediction counts what the step exchanges.
TEST_F(TrainTensor, TimelinesHaveTheMessagesOfTensorRanks) {
  const Finished finished = train("timed", {"--mesh", "pipeline=2,tensor=2", "--balance", "2,3",
                                            "--epochs", "1", "--predict", "true"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto trace = view::from_chrome_trace(read_file(folder_ / "runs/timed/timeline.json"));
  ASSERT_EQ(trace.size(), 2u) << "predicted and measured";
  for (const int rank : {0, 1}) {
    const auto predicted = tensor_times(trace[0], rank), measured = tensor_times(trace[1], rank);
    EXPECT_GT(measured.messages, 0);
    EXPECT_EQ(predicted.messages, measured.messages) << "rank " << rank;
    EXPECT_GT(predicted.exposed, 0);
    EXPECT_GT(measured.exposed, 0);
  }
  EXPECT_THAT(read_file(folder_ / "runs/timed/log.txt"),
              ::testing::ContainsRegex("tensor ranks: each sends [0-9.]+ [KM]iB in [0-9]+ messages "
                                       "per batch, .* exposed, .* hidden"));
}

// 256 tokens and 768 padded rows: the second of two ranks has padded rows alone.
TEST_F(TrainTensor, AllTokensOnTheFirstRankTrainAsOneProcess) {
  const std::vector<std::string> padded = {"--vocabulary-multiple", "1024", "--epochs", "1"};
  ASSERT_EQ(train("padded", padded).code, 0);
  std::vector<std::string> split = padded;
  split.insert(split.end(), {"--mesh", "tensor=2"});
  const Finished finished = train("padded_split", split);
  ASSERT_EQ(finished.code, 0) << finished.err;
  expect_losses_of("padded", "padded_split");
}

// A dry run counts the messages and leaves their time out.
TEST_F(TrainTensor, DryRunsCountTheMessages) {
  const Finished dry = run({"train", "split.toml", "--mesh", "tensor=2", "--dry-run"});
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("whose time the prediction leaves out"));
  // The model's parameters, not those of one rank; the messages of a run, those of the loss too,
  // also for rows that are shorter than the context, and those of adapters.
  const std::vector<std::vector<std::string>> models = {
      {"--row-tokens", "16"},
      {"--adapter-rank", "2", "--adapter-targets", all_targets, "--frozen-type", "int8"},
      {"--adapter-rank", "2", "--adapter-targets", all_targets, "--sequence-parallel", "true"}};
  for (std::size_t i = 0; i < models.size(); ++i) {
    SCOPED_TRACE(i);
    const auto finished = [&](const std::vector<std::string>& more) {
      std::vector<std::string> words = {"train", "split.toml", "--name", text("counted", i),
                                        "--json"};
      words.insert(words.end(), more.begin(), more.end());
      for (const std::string& word : models[i])
        if (word != "--sequence-parallel" || more[0] == "--mesh")
          words.push_back(word);
        else
          break;
      const Finished done = run(words);
      EXPECT_EQ(done.code, 0) << done.err;
      return done;
    };
    const Finished whole = finished({"--dry-run"});
    const Finished split = finished({"--mesh", "tensor=2", "--dry-run"});
    const Finished ran = finished({"--mesh", "tensor=2", "--max-steps", "1", "--predict", "true"});
    const auto field = [](const Finished& done, const char* name) {
      for (const std::string& line : trestle::split(done.out, '\n'))
        if (!line.empty())
          if (const auto event = nlohmann::json::parse(line); event.contains(name))
            return event.at(name);
      return nlohmann::json();
    };
    EXPECT_FALSE(field(ran, "tensor_messages").is_null());
    for (const char* name : {"parameters", "frozen_parameters"}) {
      EXPECT_EQ(field(split, name), field(whole, name)) << name;
      EXPECT_EQ(field(split, name), field(ran, name)) << name;
    }
    EXPECT_EQ(field(split, "tensor_messages"), field(ran, "tensor_messages"));
    EXPECT_EQ(field(split, "tensor_bytes_sent"), field(ran, "tensor_bytes_sent"));
  }
}

TEST_F(TrainTensor, LevelsMeasureTensorRanksBesideTheirFormula) {
  const Finished done = run({"levels", "split.toml", "--ranks", "2", "--steps", "1", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto levels = nlohmann::json::parse(done.out)["levels"];
  const auto& tensor = levels.back();
  ASSERT_EQ(tensor["name"], "tensor");
  EXPECT_EQ(tensor["tensor"], 2);
  EXPECT_EQ(tensor["moved_bytes"], tensor["formula_moved_bytes"]);
  EXPECT_GT(tensor["moved_bytes"], 0);
  EXPECT_NEAR(tensor["bytes"].get<double>() / tensor["formula_bytes"].get<double>(), 1, 0.05);
  write_file(folder_ / "adapted.toml",
             read_file(folder_ / "split.toml") +
                 text("\n[adapters]\nadapter_rank = 2\nadapter_targets = ", all_targets, "\n"));
  const Finished adapted = run({"levels", "adapted.toml", "--ranks", "2", "--dry-run"});
  ASSERT_EQ(adapted.code, 0) << adapted.err;
  EXPECT_THAT(adapted.out, HasSubstr("tensor    left out: its formula is that of a model whose"));
  // The recipe's own tensor ranks do not shrink the model.
  const Finished of_mesh = run({"levels", "split.toml", "--ranks", "2", "--dry-run", "--json"});
  write_file(folder_ / "split2.toml", read_file(folder_ / "split.toml") + "\n[mesh]\ntensor = 2\n");
  const Finished same = run({"levels", "split2.toml", "--ranks", "2", "--dry-run", "--json"});
  EXPECT_EQ(same.out, of_mesh.out) << same.err;
  const Finished odd = run({"levels", "split.toml", "--ranks", "3", "--dry-run"});
  ASSERT_EQ(odd.code, 0) << odd.err;
  EXPECT_THAT(odd.out, HasSubstr("tensor    left out: "));
  EXPECT_THAT(odd.out, HasSubstr("but over 1, 2, 4"));
}

// A recomputed block repeats its sums, and gathers the shares of its input.
TEST_F(TrainTensor, LevelsRecomputeAsTheRecipeDoes) {
  const auto level = [](const std::string& keys, const std::vector<std::string>& flags = {}) {
    write_file(folder_ / "recomputed.toml", read_file(folder_ / "split.toml") + keys);
    std::vector<std::string> words = {"levels", "recomputed.toml", "--ranks", "2", "--steps",
                                      "1",      "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    const auto row = nlohmann::json::parse(done.out)["levels"].back();
    EXPECT_EQ(row["name"], "tensor");
    EXPECT_EQ(row["moved_bytes"], row["formula_moved_bytes"]) << keys;
    return row;
  };
  const std::string mesh = "\n[mesh]\ntensor = 2\n";
  const auto plain = level(mesh);
  const auto attention = level(mesh + "[pipeline]\ncheckpoint = [\"attention\"]\n");
  EXPECT_EQ(attention["moved_bytes"], plain["moved_bytes"]);
  EXPECT_EQ(level(mesh, {"--checkpoint", "attention"})["moved_bytes"], plain["moved_bytes"]);
  const std::string blocks = mesh + "[pipeline]\ncheckpoint = [\"blocks\"]\n";
  const auto recomputed = level(blocks), shared = level(blocks + "split_recomputed = true\n");
  EXPECT_GT(recomputed["moved_bytes"], plain["moved_bytes"]);
  // Two blocks gather 8 rows of 32 tokens of 16 numbers, of which half come from the other rank.
  EXPECT_EQ(shared["moved_bytes"].get<double>() - recomputed["moved_bytes"].get<double>(),
            2 * (8 * 32 * 16 * 4) / 2);
}

TEST_F(TrainTensor, ASavedProfileIsThatOfTheSameSplit) {
  const auto recipe = [](const std::string& name, const std::string& keys) {
    write_file(folder_ / name, read_file(folder_ / "split.toml") + "\n[mesh]\ntensor = 2\n" + keys);
    return name;
  };
  const std::string blocks = "[pipeline]\ncheckpoint = [\"blocks\"]\n";
  const std::string kept = recipe("kept.toml", blocks),
                    shared = recipe("shared.toml", blocks + "split_recomputed = true\n"),
                    sequence = recipe("sequence.toml", "sequence_parallel = true\n" + blocks);
  const auto refusal = [](const std::string& name, const char* profile) {
    const Finished done = run({"balance", name, "--profile", profile});
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  ASSERT_EQ(run({"balance", shared, "--save", "shared.json"}).code, 0);
  EXPECT_EQ(run({"balance", shared, "--profile", "shared.json"}).code, 0);
  EXPECT_THAT(refusal(kept, "shared.json"),
              HasSubstr("measured with 'split_recomputed' in [pipeline] = true, the recipe has "
                        "false"));
  ASSERT_EQ(run({"balance", kept, "--save", "kept.json"}).code, 0);
  EXPECT_EQ(run({"balance", kept, "--profile", "kept.json"}).code, 0);
  EXPECT_THAT(
      refusal(sequence, "kept.json"),
      HasSubstr("measured with 'sequence_parallel' in [mesh] = false, the recipe has true"));
}

TEST_F(TrainTensor, RefusesMeshesThatDoNotFit) {
  const auto refused = [](const std::vector<std::string>& flags) {
    const Finished finished = train("refused", flags);
    EXPECT_EQ(finished.code, 2) << finished.err;
    return finished.err;
  };
  EXPECT_THAT(refused({"--mesh", "tensor=3"}),
              AllOf(HasSubstr("heads = 4, kv_heads = 2"),
                    HasSubstr("cannot be split over 3 tensor ranks, but over 1, 2, 4")));
  // Before a thousand processes are started.
  EXPECT_THAT(refused({"--mesh", "tensor=1000"}),
              HasSubstr("cannot be split over 1000 tensor ranks, but over 1, 2, 4"));
  EXPECT_THAT(refused({"--sequence-parallel", "true"}),
              HasSubstr("'sequence_parallel' in [mesh] has no effect without 'tensor' above 1"));
  EXPECT_THAT(refused({"--split-recomputed", "true"}),
              AllOf(HasSubstr("'split_recomputed' in [pipeline] has no effect without 'tensor'"),
                    HasSubstr("has no effect without layers in 'checkpoint'")));
  EXPECT_THAT(refused({"--mesh", "tensor=2", "--sequence-parallel", "true", "--checkpoint",
                       "blocks", "--split-recomputed", "true"}),
              HasSubstr("does not work with 'sequence_parallel' in [mesh]"));
  EXPECT_THAT(refused({"--mesh", "tensor=2", "--ranks", "3"}), HasSubstr("lays out 2 ranks"));
  EXPECT_THAT(refused({"--mesh", "tensors=2"}), HasSubstr("did you mean 'tensor'?"));
}

// The flag is refused, as the key of a recipe is: dropped, it would leave the run without what it
// sets.
TEST_F(TrainTensor, RefusesFlagsOfTensorRanksBesideOneRank) {
  const std::vector<std::string> sequence = {"--sequence-parallel", "true"};
  const std::vector<std::string> shares = {"--checkpoint", "blocks", "--split-recomputed", "true"};
  for (const char* mesh : {"tensor=1", "pipeline=2,tensor=1", "replicate=2"})
    for (const auto& [flags, words] :
         {std::pair(sequence,
                    "'sequence_parallel' in [mesh] has no effect without 'tensor' above 1"),
          std::pair(shares, "'split_recomputed' in [pipeline] has no effect without 'tensor'")})
      for (const char* more : {"--dry-run", "--quiet"}) {
        std::vector<std::string> all = {"train", "split.toml", "--mesh", mesh, more};
        all.insert(all.end(), flags.begin(), flags.end());
        const Finished refused = run(all);
        EXPECT_EQ(refused.code, 2) << join(all, " ");
        EXPECT_THAT(refused.err, AllOf(HasSubstr(words), HasSubstr("--mesh tensor=2")));
      }
  const Finished resumed = run({"train", "--resume", "runs/plain", "--epochs", "3", "--mesh",
                                "tensor=1", "--sequence-parallel", "true"});
  EXPECT_EQ(resumed.code, 2) << resumed.out;
  EXPECT_THAT(resumed.err, HasSubstr("'sequence_parallel' in [mesh] has no effect"));
  // Keys that the recipe brings along are those of its own ranks.
  write_file(folder_ / "sequence.toml", read_file(folder_ / "split.toml") +
                                            "\n[mesh]\ntensor = 2\nsequence_parallel = true\n");
  EXPECT_EQ(run({"train", "sequence.toml", "--mesh", "tensor=1", "--dry-run"}).code, 0);
}

// Each rank finds the error, in its command line or after the ranks have met.
TEST_F(TrainTensor, ALauncherPrintsTheErrorOfASplitOnce) {
  const auto refused = [](const char* ranks, const std::vector<std::string>& words) {
    std::vector<std::string> all = {"launch", "-n", ranks,          "--prefix",
                                    "off",    "--", TRESTLE_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    const Finished finished = run(all);
    EXPECT_EQ(finished.code, 2) << join(words, " ");
    EXPECT_EQ(finished.err.find("trestle: "), 0U) << join(words, " ") << "\n" << finished.err;
    EXPECT_EQ(finished.err.rfind("trestle: "), 0U) << join(words, " ") << "\n" << finished.err;
    return finished.err;
  };
  const char* const split = "cannot be split over 3 tensor ranks";
  EXPECT_THAT(refused("3", {"train", "split.toml", "--mesh", "tensor=3"}), HasSubstr(split));
  EXPECT_THAT(refused("3", {"view", "split.toml", "--split", "--mesh", "tensor=3"}),
              HasSubstr(split));
  EXPECT_THAT(refused("3", {"generate", "runs/plain", "--prompt", "The"}), HasSubstr(split));
  EXPECT_THAT(refused("2", {"generate", "runs/plain", "--ids", "1,1000"}),
              HasSubstr("the token id 1000"));
  EXPECT_THAT(
      refused("4", {"train", "split.toml", "--mesh", "pipeline=2,tensor=2", "--balance", "2,2,1"}),
      HasSubstr("'balance' in [pipeline] has 3 stages"));
}

// The weights of a rank, its activations and its slice of the scores.
TEST_F(TrainTensor, DryRunPredictsTheMemoryOfARank) {
  const auto peak = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train",  "split.toml", "--dry-run",
                                      "--json", "--predict",  "true"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return nlohmann::json::parse(finished.out)
        .at("stages")[0]
        .at("predicted_peak_bytes")
        .get<double>();
  };
  const double whole = peak({"--devices", "virtual:1"});
  const double half = peak({"--devices", "virtual:2", "--mesh", "tensor=2"});
  const double shards =
      peak({"--devices", "virtual:2", "--mesh", "tensor=2", "--sequence-parallel", "true"});
  EXPECT_LT(half, 0.75 * whole);
  EXPECT_GT(half, 0.45 * whole);
  EXPECT_LT(shards, half);
  // With gradients from the batch before, the peak is in the last block, beside all kept inputs.
  const std::vector<std::string> recomputed = {
      "--devices", "virtual:2",    "--mesh", "tensor=2", "--checkpoint",
      "blocks",    "--accumulate", "2",      "--set",    "transformer.layers=6"};
  std::vector<std::string> shared = recomputed;
  shared.insert(shared.end(), {"--split-recomputed", "true"});
  EXPECT_LT(peak(shared), peak(recomputed));
}

}  // namespace
}  // namespace trestle
