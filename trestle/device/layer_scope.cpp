#include "trestle/device/layer_scope.h"

namespace trestle {
namespace {
thread_local const char* innermost = "";
}

LayerScope::LayerScope(const std::string& name) : outer_(innermost) { innermost = name.c_str(); }
LayerScope::~LayerScope() { innermost = outer_; }

const char* current_layer() { return innermost; }

}  // namespace trestle
