#pragma once

#include <string>

#include "apps/trestle/verbs.h"
#include "trestle/recipe/recipe.h"

// What `trestle train` makes of its ranks and their devices.
namespace trestle::app {

// "pipeline=2,replicate=2", as changes of [mesh]. Throws UsageError.
FieldChanges changes_of_mesh(const std::string& words);

// A layout is whole: these make one of what it does not name, whatever a recipe or a run has. What the flags say of the level
// stays.
FieldChanges changes_beside_mesh(const std::string& words, const FieldChanges& flags);

// Throws UsageError where flags say again, or otherwise, what --mesh says.
void check_mesh_alone(const std::string& words, const FieldChanges& flags);

// Throws UsageError where --mesh lays out other ranks than those that are asked for; 0: nothing says how many.
void check_ranks_of_mesh(const std::string& words, const recipe::Recipe::Mesh& mesh, int asked);

// So many are started where nothing else says how many there are.
int ranks_of(const recipe::Recipe::Mesh& mesh);

// Throws UsageError for a --shard-level among these flags that has nothing to divide over.
void check_shard_level(const recipe::Recipe& recipe, const FieldChanges& flags);

// A recipe's "virtual:2" is a number for its own stages: where ranks share the batch and --devices is not given, each of
// them has a virtual device. A run that goes on has the number of the ranks it had, whose layout is `before`: without ranks
// that share the batch it becomes one for each rank or stage. At most one change, and what to say of it.
FieldChanges devices_of_mesh(const recipe::Recipe& recipe, const recipe::Recipe::Mesh& before,
                             int ranks, const FieldChanges& changes);
std::string note_of_devices(const recipe::Recipe& recipe, int ranks, const std::string& devices);

}  // namespace trestle::app
