#pragma once

#include "trestle/recipe/recipe.h"
#include "trestle/view/split_picture.h"

// Not installed.
namespace trestle::train {

// The split of a recipe's transformer over the ranks of 'tensor' in [mesh], for to_svg_split(): the
// embedding, the first block, the last norm and the head. The slices are those of
// models::transformer() for ranks on paper; no weight is drawn or read. With one rank everything is
// whole.
//
// Throws UsageError for another model, for more than view::most_split_ranks ranks, and as
// models::transformer() for sizes that the ranks cannot share.
view::SplitPicture split_picture(const recipe::Recipe& recipe);

}  // namespace trestle::train
