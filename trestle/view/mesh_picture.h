#pragma once

#include <string>

#include "trestle/mesh/layout/mesh_layout.h"

namespace trestle::view {

// A mesh of ranks as SVG: its last dimension from left to right, the one before from top to bottom, and a block
// below the other for each place in those before these. A row has one colour: its ranks are the group along the
// last dimension. Throws UsageError for more than 4096 ranks.
std::string to_svg_mesh(const mesh::MeshLayout& layout);

}  // namespace trestle::view
