#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trestle::sharding {

// Which modules ShardOptions::units.names means: "block1" is the module of that name, those whose
// names begin with "block1.", or all of that type. A type has its name with or without namespaces,
// and with or without "Impl" at its end.
class UnitChoice {
 public:
  explicit UnitChoice(std::vector<std::string> wanted);

  bool empty() const { return wanted_.empty(); }
  struct Match {
    std::size_t number = 0;  // of what was wanted
    bool by_prefix = false;
  };
  // Notes that there is such a module, for check().
  std::optional<Match> match(const std::string& name, const torch::nn::Module& module);
  // Throws UsageError for what is wanted and no module was, with the nearest name there is.
  void check() const;

 private:
  std::vector<std::string> wanted_;
  std::vector<bool> found_;
  std::vector<std::string> known_;
};

}  // namespace trestle::sharding
