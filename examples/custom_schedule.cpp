// A schedule is data: this one is CSV text, in PyTorch's format. Four stages run on two devices, so
// that each device holds an early and a late stage (looped, breadth first). The program simulates
// the schedule, prints it with its idle time, runs it, and draws both timelines.
#include <trestle/trestle.h>

#include <cmath>
#include <iostream>

namespace {

// Row r lists the actions of rank r in order; "2F1" is the forward of stage 2 for micro-batch 1.
const char* const csv =
    "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
    "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n";

trestle::nn::Layers make_net() {
  return trestle::models::mlp({.width = 256, .depth = 4, .seed = 3});
}

double one_step(const trestle::PipelineOptions& options, const at::Tensor& x, const at::Tensor& y) {
  trestle::Pipeline pipeline(make_net(), options);
  return pipeline.step(x, y, trestle::nn::cross_entropy()).loss;
}

}  // namespace

int main() {
  const auto devices = trestle::virtual_devices(2);
  const at::Tensor x = torch::randn({512, 10});
  const at::Tensor y = torch::randint(5, {512});

  // [table]
  trestle::schedule::Schedule table = trestle::schedule::parse_csv(csv, "looped");
  trestle::schedule::validate(table);  // throws an error with the grid if it would deadlock

  // Simulate it: a forward takes one unit of time, a backward two.
  const auto simulated = trestle::simulate::simulate(trestle::schedule::lower(table, {}),
                                                     trestle::simulate::unit_costs(table.stages));
  std::cout << trestle::view::to_text_grid(simulated);

  // Run it: stage s is on the s-th device of the list.
  trestle::PipelineOptions options{.devices = {devices[0], devices[1], devices[0], devices[1]},
                                   .balance = {3, 2, 2, 3},
                                   .micro_batches = 2,
                                   .plan = {.table = table}};
  trestle::Pipeline pipeline(make_net(), options);
  const trestle::StepResult step = pipeline.step(x, y, trestle::nn::cross_entropy());
  // [table]

  // [draw]
  const auto costs = pipeline.profile({x}, y, trestle::nn::cross_entropy());
  trestle::schedule::Timeline predicted = pipeline.predict(costs);
  pipeline.step(x, y, trestle::nn::cross_entropy());  // the first step also allocates memory
  trestle::schedule::Timeline measured = pipeline.timeline();  // of the last step
  trestle::write_file("looped.svg", trestle::view::to_svg({predicted, measured}));
  // [draw]

  const double gpipe = one_step({.devices = devices, .balance = {5, 5}, .micro_batches = 2}, x, y);
  std::cout << "loss " << step.loss << ", with GPipe on two stages " << gpipe << "\n"
            << "wrote looped.svg\n";
  return std::abs(step.loss - gpipe) < 1e-6 ? 0 : 1;
}
