#pragma once

namespace trestle {

// Has the functions of vectors (tanh, exp, ...) called once, by one thread, before several threads call them. MKL, which
// libtorch computes them with, chooses their code at the first call, and where threads make that at the same time one of
// them may compute with less accuracy: tanh of float32 was 1e-5 off in one run of forty, with libtorch 2.13. Does nothing
// from the second call on. Called wherever threads of ranks, stages and replicas are started.
void settle_vector_math();

}  // namespace trestle
