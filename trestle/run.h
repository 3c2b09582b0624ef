#pragma once

#include <functional>
#include <map>
#include <string>

// The whole command line as one function, for programs with their own models, data sets, losses and
// metrics:
//
//   #include <trestle/trestle.h>
//
//   trestle::nn::Layers make_mine(const trestle::models::ModelOptions& options);
//
//   int main(int argc, char** argv) {
//     return trestle::run(argc, argv, {.models = {{"mine", make_mine}}});
//   }
//
// A recipe with `[model] name = "mine"` uses it, and every verb works with it. `[data] name`,
// `[train] loss` and `[train] metric` name the other three kinds; examples/own_parts has all four.
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
  // A larger value of a metric is better.
  std::map<std::string,
           std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)>>
      metrics = {};
};

// Runs the verb that the arguments name. Returns the exit code: 0 success, 1 failure (also if its
// output could not be written), 2 usage error (a wrong flag, recipe or value, a missing file), 130
// stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP. Errors go to the standard error as
// "trestle: <message>".
int run(int argc, char** argv, const RunOptions& options = {});

}  // namespace trestle
