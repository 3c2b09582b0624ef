#pragma once

namespace trestle {

// After this call the whole process uses only operators that give the same bits for the same
// arguments: libtorch's deterministic algorithms, cuDNN's deterministic algorithms without
// autotuning, and cuBLAS with a workspace of fixed size. An operator without a deterministic
// version on its device throws an error that names it. Some GPU operators become slower. CPU
// operators, and so those of virtual devices, are deterministic anyway for a given number of
// threads.
//
// Call it before the first work on a GPU: cuBLAS reads its environment variable only once. It is
// the same as torch.use_deterministic_algorithms(True) with torch.backends.cudnn.deterministic =
// True and .benchmark = False.
void use_deterministic_algorithms();

}  // namespace trestle
