// The few functions of the CUDA libraries whose result matters; for every other one build.py makes a
// function that returns 0. One section a library, compiled with -DLIB_<name>.
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef LIB_cublas
// A handle of its own for every thread that asks: torch keeps a workspace for each handle and stream.
EXPORT int cublasCreate_v2(void **handle) {
    static int created;
    *handle = (void *)(size_t)__atomic_add_fetch(&created, 1, __ATOMIC_RELAXED);
    return 0;
}

EXPORT int cublasGetMathMode(void *handle, int *mode) {
    *mode = 0;
    return 0;
}

EXPORT int cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = 0;
    return 0;
}

EXPORT int cublasGetVersion_v2(void *handle, int *version) {
    *version = 130000;
    return 0;
}
#endif

#ifdef LIB_cublasLt
EXPORT int cublasLtCreate(void **handle) {
    *handle = (void *)1;
    return 0;
}

EXPORT size_t cublasLtGetVersion(void) {
    return 130000;
}

// "One algorithm found": torch gives up where there is none.
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                          void *preference, int requested, void *results, int *found) {
    *found = 1;
    return 0;
}
#endif

#ifdef LIB_cudnn
EXPORT size_t cudnnGetVersion(void) {
    return 92000;
}

EXPORT size_t cudnnGetCudartVersion(void) {
    return 13000;
}

EXPORT int cudnnCreate(void **handle) {
    *handle = (void *)1;
    return 0;
}
#endif

#ifdef LIB_nccl
EXPORT int ncclGetVersion(int *version) {
    *version = 22907;
    return 0;
}

EXPORT const char *ncclGetErrorString(int error) {
    return "stand-in";
}
#endif
