#pragma once

#include "trestle/launch/rank_environment.h"

// What mpirun and mpiexec say. Inside of rank_environment.
namespace trestle::launch {

class VariableReader;

// Of a process that has OMPI_COMM_WORLD_RANK or OMPI_COMM_WORLD_SIZE.
RankEnvironment read_openmpi(const VariableReader& variables);

// Of a process that has PMI_RANK or PMI_SIZE.
RankEnvironment read_mpich(const VariableReader& variables);

}  // namespace trestle::launch
