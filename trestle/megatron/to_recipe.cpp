#include "trestle/megatron/to_recipe.h"

#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

std::string to_recipe(std::string_view flags, int ranks) {
  Reading reading(parse_flags(flags));
  RecipeText out;
  out.comment(
      "The recipe of Megatron-LM's flags, by `trestle train --megatron` (docs/megatron.md).");
  const Sizes sizes = read_sizes(reading, ranks);
  explain_text(reading, out);
  map_model(reading, sizes, out);
  map_data(reading, sizes, out);
  map_ranks(reading, sizes, out);
  map_optimizer(reading, sizes, out);
  map_run(reading, sizes, out);
  reading.throw_if_any();  // values that follow from a fault would be more faults
  for (const std::string& problem : out.problems()) reading.problem(problem);
  reading.throw_if_any();
  const std::vector<std::string> notes = reading.notes();
  if (notes.empty()) return out.text();
  out.comment("");
  out.comment("Flags without a key:");
  for (const std::string& note : notes) out.comment("  " + note);
  return out.text();
}

}  // namespace trestle::megatron
