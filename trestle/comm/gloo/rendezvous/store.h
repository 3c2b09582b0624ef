#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

// What the overrides of ProcessGroupGloo::GlooStore need in order to compile. Gloo's own class has
// more virtual functions, so that an object made from this declaration would be a wrong one: nobody
// may make, derive or call it.
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
