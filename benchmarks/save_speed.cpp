// Compares a checkpoint of thread ranks (weights and AdamW's moments) with the same number of bytes
// written to one file, both flushed to disk. Also compares the delay of training by a save in the
// background with a copy in memory.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/units.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/save/background_save.h"
#include "trestle/sharding/save/save.h"

namespace {

using namespace trestle;
namespace fs = std::filesystem;

struct Job {
  fs::path folder = "save_speed";
  int ranks = 2;
  int layers = 85;
  int width = 1024;  // 12 MiB per layer
  int rounds = 5;
};

// Writes like `dd`: block after block, then flushes everything to disk.
double write_plain(const fs::path& file, Bytes bytes) {
  constexpr std::size_t piece = std::size_t{8} << 20;
  const std::vector<char> data(piece, 'x');
  const Stopwatch watch;
  const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (out < 0) throw FileError("cannot write " + file.string());
  for (Bytes left = bytes; left > 0;) {
    const auto done =
        write(out, data.data(), std::min<std::size_t>(piece, static_cast<std::size_t>(left)));
    if (done <= 0) throw FileError("cannot write " + file.string());
    left -= done;
  }
  fsync(out);
  close(out);
  const double seconds = watch.seconds();
  fs::remove(file);
  return seconds;
}

Bytes bytes_in(const fs::path& folder) {
  Bytes bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<Bytes>(entry.file_size());
  return bytes;
}

// Copies the same data as save(): a rank's weights and moments, into newly allocated memory.
double copy(const Sharded& sharded, const torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const auto groups = sharding::groups_to_save(sharded, &optimizer, {});
  const Stopwatch watch;
  std::vector<at::Tensor> copies;
  for (const auto& [group, parts] : groups)
    for (const auto& part : parts) copies.push_back(part.tensor.detach().clone());
  return watch.seconds();
}

using Report = std::map<std::string, std::vector<double>>;

Report train(const Job& job, World& world) {
  const DeviceMesh mesh(world, {{"shard", world.size()}});
  nn::Layers net(nn::Seed{1});
  for (int i = 0; i < job.layers; ++i)
    net.add("layer" + std::to_string(i),
            [width = job.width] { return torch::nn::Linear(width, width); });
  Sharded sharded(net, mesh, {.level = ShardLevel::Parameters});
  const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adamw"});
  sharded.backward(sharded.forward(torch::randn({1, job.width})).square().mean());
  optimizer->step();
  optimizer->zero_grad();
  BackgroundSave saving(mesh, sharded);
  Report report;
  for (int round = 0; round <= job.rounds; ++round) {  // the first one is not measured
    const auto measure = [&](const char* what, const std::function<double()>& work) {
      world.group().barrier();
      const double seconds = work();
      if (round > 0) report[what].push_back(seconds);
    };
    measure("save", [&] {
      const Stopwatch watch;
      save(job.folder / "last", sharded, *optimizer);
      return watch.seconds();
    });
    measure("disk", [&] {
      return world.rank() == 0 ? write_plain(job.folder / "plain", bytes_in(job.folder / "last"))
                               : 0;
    });
    measure("copy", [&] { return copy(sharded, *optimizer); });
    measure("stall", [&] {
      const Stopwatch watch;
      saving.save(job.folder / "last", sharded, *optimizer);
      return watch.seconds();
    });
    saving.wait();
  }
  report["bytes"] = {world.rank() == 0 ? static_cast<double>(bytes_in(job.folder / "last")) : 0};
  return report;
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  CLI::App app("Compares saving a checkpoint with writing the same number of bytes to a file.");
  app.add_option("--folder", job.folder, "Folder on the measured disk; it is created and removed");
  app.add_option("--ranks", job.ranks, "Number of thread ranks")->check(CLI::Range(1, 16));
  app.add_option("--layers", job.layers, "Number of layers");
  app.add_option("--width", job.width, "Width of each layer");
  app.add_option("--rounds", job.rounds, "Measured rounds")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    if (!fs::create_directories(job.folder))
      throw UsageError(job.folder.string() + " exists already");
    const auto reports = spawn(job.ranks, [&](World& world) { return train(job, world); });
    fs::remove_all(job.folder);
    std::cout << nlohmann::ordered_json(reports[0]).dump() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "save_speed: " << error.what() << std::endl;
    return 1;
  }
}
