// trestle with an additional model, "sleeping" (sleeping_net.h). A sweep over it shows a pipeline
// with known costs, as if each device had its own machine.
//
//     sleeping_trestle sweep benchmarks/sleeping.toml --over pipeline.split_size=1,4,12,20,40,120
#include "benchmarks/sleeping_net.h"
#include "trestle/models/model.h"
#include "trestle/run.h"

int main(int argc, char** argv) {
  const auto make = [](const trestle::models::ModelOptions& options) {
    return benchmarks::sleeping_net(2, options.classes);
  };
  return trestle::run(argc, argv, {.models = {{"sleeping", make}}});
}
