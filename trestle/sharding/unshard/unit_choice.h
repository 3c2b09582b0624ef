#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trestle::sharding {

// Matches modules with ShardOptions::units.names. "block1" matches the module of that name, all
// modules whose names begin with "block1.", and all of that type. A type may be written with or
// without namespaces, and with or without "Impl".
class UnitChoice {
 public:
  explicit UnitChoice(std::vector<std::string> wanted);

  bool empty() const { return wanted_.empty(); }
  struct Match {
    std::size_t number = 0;  // of the wanted name
    bool by_prefix = false;
  };
  // Remembers the module for check().
  std::optional<Match> match(const std::string& name, const torch::nn::Module& module);
  // Remembers a layer of another stage, whose module does not exist here. Types may exist there.
  void note_elsewhere(const std::string& name);
  // Throws UsageError, with the nearest name, for a wanted name that matched no module.
  void check() const;

 private:
  std::vector<std::string> wanted_;
  std::vector<bool> found_;
  std::vector<std::string> known_;
};

}  // namespace trestle::sharding
