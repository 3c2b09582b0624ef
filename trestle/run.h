#pragma once

#include <functional>
#include <map>
#include <string>

// The whole command line as one function, for programs that bring models of their own:
//
//   #include <trestle/trestle.h>
//
//   trestle::nn::Layers make_mine(const trestle::models::ModelOptions& options);
//
//   int main(int argc, char** argv) {
//     return trestle::run(argc, argv, {.models = {{"mine", make_mine}}});
//   }
//
// Then `[model] name = "mine"` in a recipe names it, and every verb works with it.
namespace trestle {

namespace nn {
class Layers;
}
namespace models {
struct ModelOptions;
}

struct RunOptions {
  std::map<std::string, std::function<nn::Layers(const models::ModelOptions&)>> models = {};
};

// Runs the verb that the arguments name. Returns the exit code: 0 done, 1 it failed (also where its
// output could not be written), 2 it was asked for something that cannot be: a flag, a recipe, a
// value, a file that is not there; 130 stopped by Ctrl-C, 143 by SIGTERM. Errors go to the standard
// error as "trestle: <message>".
int run(int argc, char** argv, const RunOptions& options = {});

}  // namespace trestle
