#include "trestle/cli/planned_sizes.h"

#include <vector>

#include "trestle/base/text.h"
#include "trestle/plan/conv/conv_models.h"
#include "trestle/plan/conv/planned_layers.h"
#include "trestle/plan/gpt/known_models.h"
#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::cli {

std::unique_ptr<plan::PlannedModel> model_by_sizes(const std::string& form,
                                                   const std::string& sizes,
                                                   const plan::Machine& machine) {
  if (form == "unet")
    return std::make_unique<plan::PlannedLayers>(plan::parse_unet(sizes), machine);
  if (form == "resnet101")
    return std::make_unique<plan::PlannedLayers>(plan::parse_resnet101(sizes), machine);
  return std::make_unique<plan::PlannedGpt>(form == "gpt"     ? plan::parse_gpt(sizes)
                                            : form == "llama" ? plan::parse_llama(sizes)
                                                              : plan::parse_known_model(sizes),
                                            machine);
}

std::string known_model_names() {
  std::vector<std::string> names;
  for (const plan::KnownModel& known : plan::known_models()) names.emplace_back(known.name);
  return join(names, ", ");
}

}  // namespace trestle::cli
