#include "trestle/device/layer_scope.h"

namespace trestle {
namespace {
thread_local const char* innermost_layer = "";
}

LayerScope::LayerScope(const std::string& name) : outer_(innermost_layer) {
  innermost_layer = name.c_str();
}
LayerScope::~LayerScope() { innermost_layer = outer_; }

const char* current_layer() { return innermost_layer; }

}  // namespace trestle
