#include "trestle/train/field_help.h"

#include <map>

#include "trestle/base/text.h"
#include "trestle/models/model.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/learning_rate.h"
#include "trestle/schedule/generate.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/task.h"

namespace trestle::train {

namespace {

std::string schedule_names() {
  std::vector<std::string> names;
  for (const auto& known : schedule::known_schedules()) names.push_back(known.name);
  return join(names, ", ") +
         "; a table in a file that ends in .csv; or auto: the fastest for the measured layers";
}

// "; empty: accuracy for arrays, dice for carvana, ..."
std::string defaults(std::string DataSet::*member) {
  std::vector<std::string> parts;
  for (const DataSet& set : data_sets()) parts.push_back(set.*member + " for " + set.name);
  return "; empty: " + join(parts, ", ");
}

}  // namespace

std::string help_of(const recipe::Field& field, const UserParts& own) {
  const std::map<std::string, std::string> names = {
      {"model.name", join(models::model_names(), ", ") + ", or one that the program adds"},
      {"data.name", data_set_names(own)},
      {"pipeline.schedule", schedule_names()},
      {"optimizer.name", join(optim::optimizer_names(), ", ")},
      {"optimizer.learning_rate_schedule", join(optim::learning_rate_schedules(), ", ")},
      {"train.loss", join(loss_names(own), ", ") + defaults(&DataSet::loss)},
      {"train.metric", join(metric_names(own), ", ") + defaults(&DataSet::metric)},
  };
  const auto found = names.find(field.name());
  return found == names.end() ? field.help : field.help + ": " + found->second;
}

}  // namespace trestle::train
