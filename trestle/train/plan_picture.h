#pragma once

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/view/split_picture.h"

// Not installed.
namespace trestle::train {

// The split of a model that a plan splits (split_layers.h) over the ranks of 'tensor' in [mesh],
// for to_svg_split(): every layer with parameters, one section for neighbours that are alike. Each
// layer is created once for each rank, one at a time.
//
// Throws UsageError as make_model().
view::SplitPicture plan_picture(const recipe::Recipe& recipe, const models::OwnModels& own);

}  // namespace trestle::train
