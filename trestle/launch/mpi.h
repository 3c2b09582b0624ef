#pragma once

#include "trestle/launch/rank_environment.h"

// Reads the variables of mpirun and mpiexec. Used by rank_environment.cpp only.
namespace trestle::launch {

class VariableReader;

// For a process with OMPI_COMM_WORLD_RANK or OMPI_COMM_WORLD_SIZE.
RankEnvironment read_openmpi(const VariableReader& variables);

// For a process with PMI_RANK or PMI_SIZE.
RankEnvironment read_mpich(const VariableReader& variables);

}  // namespace trestle::launch
