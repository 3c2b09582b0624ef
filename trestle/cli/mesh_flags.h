#pragma once

#include <string>

#include "trestle/cli/verbs.h"
#include "trestle/recipe/recipe.h"

// The --mesh flag of `trestle train`, and the devices of its ranks.
namespace trestle::cli {

// Converts "pipeline=2,replicate=2" to changes of [mesh]. Throws UsageError.
FieldChanges changes_of_mesh(const std::string& words);

// The changes of --mesh, then those of the flags of fields. A dimension that --mesh does not name
// has size 1, whatever the recipe or run has, and the keys that need it have their defaults. Flags
// come last: one without effect in this mesh is refused with the recipe, and not dropped.
FieldChanges changes_of_mesh_and_flags(const std::string& words, const FieldChanges& flags);

// Throws UsageError if --mesh is given together with flags for its dimensions.
void check_mesh_alone(const std::string& words, const FieldChanges& flags);

// Throws UsageError if --mesh lays out another number of ranks than `asked`; 0 = any number.
void check_ranks_of_mesh(const std::string& words, const recipe::Recipe::Mesh& mesh, int asked);

// The number of ranks of a mesh: they are started if neither --ranks nor a launcher gives a number.
int ranks_of(const recipe::Recipe::Mesh& mesh);

// Throws UsageError for a --shard-level among these flags without ranks to shard over.
void check_shard_level(const recipe::Recipe& recipe, const FieldChanges& flags);

// The number of devices of a recipe whose devices are "virtual:2"; 0 for other devices.
int virtual_devices_of(const recipe::Recipe& recipe);

// A recipe's "virtual:2" is one device per stage. If ranks share the batch and --devices is not
// given, this changes it to one virtual device per rank. A resumed run has one per rank of its
// former mesh `before`; without ranks that share the batch this changes it to one per rank or
// stage. Returns at most one change; note_of_devices() describes it.
FieldChanges devices_of_mesh(const recipe::Recipe& recipe, const recipe::Recipe::Mesh& before,
                             int ranks, const FieldChanges& changes);
std::string note_of_devices(const recipe::Recipe& recipe, int ranks, const std::string& devices);

}  // namespace trestle::cli
