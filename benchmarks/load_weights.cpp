// Measures checkpoint::load_weights(), from a safetensors file into the parameters of an existing
// model. The model is a sequence of square Linear layers without bias, named as in a
// torch.nn.Sequential.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/nn/layers.h"

namespace {

struct Job {
  std::string file;
  int layers = 64;
  int width = 2048;  // 16 MiB of float per layer
  int loads = 5;
  bool write = false;
};

trestle::nn::Layers make_net(const Job& job) {
  trestle::nn::Layers net;
  for (int i = 0; i < job.layers; ++i)
    net.add(trestle::text(i),
            torch::nn::Linear(torch::nn::LinearOptions(job.width, job.width).bias(false)));
  return net;
}

void measure(const Job& job) {
  const trestle::nn::Layers net = make_net(job);
  if (job.write) {
    trestle::checkpoint::write_weights(job.file, net.named_parameters());
    return;
  }
  nlohmann::ordered_json report{{"bytes", net.parameter_count() * 4}};
  for (int load = 0; load < 1 + job.loads; ++load) {  // the first load caches the file
    const trestle::Stopwatch watch;
    trestle::checkpoint::load_weights(net, job.file);
    if (load > 0) report["seconds"].push_back(watch.seconds());
  }
  report["sum"] = net.parameters().back().sum(torch::kDouble).item<double>();
  std::cout << report.dump() << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("Loads a safetensors file into the parameters of a model.");
  Job job;
  app.add_option("--file", job.file, "The safetensors file")->required();
  app.add_flag("--write", job.write, "Write the file, and measure nothing");
  app.add_option("--layers", job.layers, "Number of layers");
  app.add_option("--width", job.width, "Rows and columns of each layer's weight");
  app.add_option("--loads", job.loads, "Number of measured loads")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job);
  } catch (const std::exception& error) {
    std::cerr << "load_weights: " << error.what() << "\n";
    return 1;
  }
}
