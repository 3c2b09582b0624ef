#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

// Enough for the overrides of ProcessGroupGloo::GlooStore to compile. Gloo's own class has more
// virtual functions, so an object of this declaration would have a wrong vtable: do not create,
// derive from or call it.
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous
