#pragma once

// Memory of CPU tensors that is given back to the program instead of to the system.
namespace trestle {

// From here on, freed blocks of CPU tensors are kept for the next tensor of about that size. The
// system's malloc gives the large ones back at once and faults their pages in again at every step,
// which costs a net of convolutions 5 to 30 % of its time. What is kept and what is in use together
// stay below 3/2 of the most that was in use, plus 64 MiB.
//
// For programs on plain `cpu` devices, `trestle train` among them; install_virtual_devices() does it
// too. Process-wide and for good, from the first call; call it before other threads make tensors.
// Under AddressSanitizer nothing is kept.
void cache_cpu_memory();

}  // namespace trestle
