#include "trestle/train/run_folder/run_end.h"

#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

bool has_all_epochs(const recipe::Recipe& recipe, const checkpoint::TrainState& stands) {
  return stands.epoch >= recipe.train.epochs;
}

bool has_all_steps(const recipe::Recipe& recipe, const checkpoint::TrainState& stands) {
  return recipe.train.max_steps > 0 && stands.step >= recipe.train.max_steps;
}

}  // namespace

std::string why_finished(const recipe::Recipe& recipe, const checkpoint::TrainState& stands,
                         const EarlyStop& early) {
  std::vector<std::string> why;
  if (has_all_epochs(recipe, stands))
    why.push_back(text("has all its epochs, ", stands.epoch, " (--epochs ", stands.epoch + 1,
                       " or more continues)"));
  if (has_all_steps(recipe, stands))
    why.push_back(text("has all its steps, ", stands.step, " (--max-steps ", stands.step + 1,
                       " or more continues, 0 continues to the end of its epochs)"));
  if (early.stops())
    why.push_back(text("ended early, ", counted(early.bad_epochs(), "epoch"),
                       " without a better metric (--patience ", early.bad_epochs() + 1,
                       " or more continues, 0 continues to the end of its epochs)"));
  return join(why, "; and ");
}

std::string resume_flags_of(const recipe::Recipe& recipe, const checkpoint::TrainState& stands,
                            const EarlyStop& early) {
  std::vector<std::string> flags;
  if (has_all_epochs(recipe, stands)) flags.emplace_back("--epochs N");
  if (has_all_steps(recipe, stands)) flags.emplace_back("--max-steps N");
  if (early.stops()) flags.emplace_back("--patience N");
  return join(flags, " ");
}

}  // namespace trestle::train
