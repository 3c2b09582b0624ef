#pragma once

#include <string>

// Records which layer this thread is running, so that an out-of-memory error can name it.
//
//   LayerScope scope(layer.name);  // two pointer writes; scopes nest
namespace trestle {

class LayerScope {
 public:
  // Keeps only a pointer: `name` must outlive the scope, so temporaries are rejected.
  explicit LayerScope(const std::string& name);
  explicit LayerScope(std::string&& name) = delete;
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  const char* outer_;
};

// The innermost layer of this thread, "" if there is none. Valid until that scope ends.
const char* current_layer();

}  // namespace trestle
