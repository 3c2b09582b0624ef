#pragma once

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/view/split_picture.h"

// Not installed.
namespace trestle::train {

// The split of a recipe's model over the ranks of 'tensor' in [mesh], for to_svg_split(). A
// transformer is drawn by its embedding, its first block, its last norm and its head, and no weight
// is made or read. Another model is drawn layer by layer (plan_picture.h). With one rank everything
// is whole.
//
// Throws UsageError for more than view::most_split_ranks ranks, and as make_model() for layers that
// the ranks cannot share.
view::SplitPicture split_picture(const recipe::Recipe& recipe, const models::OwnModels& own = {});

}  // namespace trestle::train
