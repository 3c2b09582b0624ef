#pragma once

namespace trestle {

// From here on only operators that give the same bits each time they are run with the same
// arguments, for the whole process: libtorch's deterministic algorithms, cuDNN's deterministic ones
// without its search for the fastest, and cuBLAS with a workspace of fixed size. An operator that has
// no such form on its device throws and says so. Makes some operators slower on a GPU; the CPU's, and so
// the virtual devices', are deterministic by themselves for a given number of threads.
//
// Call it before the first work on a GPU: cuBLAS looks at its environment variable once. It is
// torch.use_deterministic_algorithms(True) with torch.backends.cudnn.deterministic = True and
// .benchmark = False.
void use_deterministic_algorithms();

}  // namespace trestle
