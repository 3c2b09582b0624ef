#pragma once

#include <string>

#include "trestle/mesh/layout/mesh_layout.h"

namespace trestle::view {

// Draws a mesh of ranks as SVG. The last dimension runs from left to right, the one before from top
// to bottom, and each place in the remaining dimensions is a block, one below the other. The ranks
// of a row have one colour: they are a group along the last dimension. Throws UsageError for more
// than 4096 ranks.
std::string to_svg_mesh(const mesh::MeshLayout& layout);

}  // namespace trestle::view
