#pragma once

#include <functional>
#include <map>
#include <string>

// The whole command line as one function, for programs that bring models, data sets, losses and
// metrics of their own:
//
//   #include <trestle/trestle.h>
//
//   trestle::nn::Layers make_mine(const trestle::models::ModelOptions& options);
//
//   int main(int argc, char** argv) {
//     return trestle::run(argc, argv, {.models = {{"mine", make_mine}}});
//   }
//
// Then `[model] name = "mine"` in a recipe names it, and every verb works with it. The others are
// named by `[data] name`, `[train] loss` and `[train] metric`; examples/own_parts has all four.
namespace at {
class Tensor;
}
namespace trestle {

namespace nn {
class Layers;
struct Loss;
struct Tally;
}  // namespace nn
namespace models {
struct ModelOptions;
}
namespace data {
struct DataOptions;
struct OwnData;
}  // namespace data

struct RunOptions {
  std::map<std::string, std::function<nn::Layers(const models::ModelOptions&)>> models = {};
  std::map<std::string, std::function<data::OwnData(const data::DataOptions&)>> data_sets = {};
  std::map<std::string, std::function<nn::Loss()>> losses = {};
  // Of each a larger value is better.
  std::map<std::string,
           std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)>>
      metrics = {};
};

// Runs the verb that the arguments name. Returns the exit code: 0 done, 1 it failed (also where its
// output could not be written), 2 it was asked for something that cannot be: a flag, a recipe, a
// value, a file that is not there; 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP. Errors go to the
// standard error as "trestle: <message>".
int run(int argc, char** argv, const RunOptions& options = {});

}  // namespace trestle
